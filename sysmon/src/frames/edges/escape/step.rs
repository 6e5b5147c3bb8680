//! What one instruction does with addresses of thread-locals.

use std::ops::Range;

use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::state::State;
use super::{ARGUMENTS, Answer, Arguments, Ask, Callee, Colours, Escape, ON_STACK, RESULTS, RSP};
use super::{Results, SPOILED};
use crate::frames::edges::flow::{ANSWERED, ASKED, is_other_part};
use crate::frames::edges::pointers::is_by_table;
use crate::frames::edges::{bit, has_memory, has_near_target, is_writable};
use crate::frames::image::{Image, Target};

const RBP: u32 = 1 << 5;
/// Where arguments on the stack begin: behind the return address.
const BEHIND: i32 = 8;
/// No function receives more bytes of arguments on the stack.
const MOST_GIVEN: i32 = 256;

/// Where control goes after an instruction.
#[derive(Default)]
pub(super) struct Exits {
    pub(super) next: bool,
    pub(super) to: Option<u64>,
    /// Control goes wherever the tables of the function lead.
    pub(super) by_table: bool,
}

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeLocation {
    /// The word with the thread pointer.
    ThreadPointer,
    /// A word of the frame, at this distance.
    Frame(i32),
    /// Some word of the frame.
    SomeFrame,
    /// No word of the frame: a thread-local, or a variable with a name.
    Apart,
    /// Any other place, including words of the frame whose address is taken.
    Anywhere,
}

/// One instruction and what it does to the state.
pub(super) struct Step<'a> {
    pub(super) image: &'a Image,
    pub(super) range: &'a Range<usize>,
    pub(super) info: &'a mut InstructionInfoFactory,
    /// Arguments on the stack may be addresses.
    pub(super) stack_given: bool,
    /// Where jumps through registers lead in the function is known.
    pub(super) told: bool,
    /// The previous instruction.
    pub(super) before: Option<Instruction>,
    pub(super) state: State,
    pub(super) taken: &'a mut i32,
    pub(super) escape: &'a mut Escape,
}

/// Notes that addresses are lost.
pub(super) fn lose(escape: &mut Escape, colours: Colours, how: &'static str) {
    if colours.has(Colours::OWN) {
        escape.own.lost.get_or_insert(how);
    }
    if colours.has(Colours::GIVEN) {
        escape.given.lost.get_or_insert(how);
    }
}

impl Step<'_> {
    fn lose(&mut self, colours: Colours, how: &'static str) {
        lose(self.escape, colours, how);
    }

    pub(super) fn take(&mut self, instruction: &Instruction, ask: &mut Ask<'_>) -> Exits {
        let next = Exits {
            next: true,
            ..Exits::default()
        };
        match instruction.flow_control() {
            _ if instruction.mnemonic() == Mnemonic::Syscall => {
                let asked = self.state.colours(ASKED);
                self.lose(asked, "it is given to the kernel");
                self.state.clear(ANSWERED);
                next
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                self.call(instruction, ask);
                next
            }
            FlowControl::Return => {
                self.returns(|state, register| state.colours(register));
                Exits::default()
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                self.jump(instruction, ask)
            }
            FlowControl::IndirectBranch => self.jump_through(instruction, ask),
            FlowControl::Exception => Exits::default(),
            _ => {
                if !self.usual_form(instruction) {
                    self.any_form(instruction);
                }
                self.mark();
                next
            }
        }
    }

    /// Notes whether there are addresses at all.
    fn mark(&mut self) {
        let all = self.state.all();
        self.escape.own.any |= all.has(Colours::OWN);
        self.escape.given.any |= all.has(Colours::GIVEN);
    }

    fn returns(&mut self, colours: impl Fn(&State, u32) -> Colours) {
        for (bit, &register) in RESULTS.iter().enumerate() {
            let colours = colours(&self.state, register);
            if colours.has(Colours::OWN) {
                self.escape.own.returns |= 1 << bit;
            }
            if colours.has(Colours::GIVEN) {
                self.escape.given.returns |= 1 << bit;
            }
        }
    }

    fn callee(&self, instruction: &Instruction) -> Callee {
        let target = if has_near_target(instruction) {
            let target = instruction.near_branch_target() as usize;
            match self.image.stub(target) {
                Some(slot) => self.image.pointer(slot),
                None => Some(Target::Code(target)),
            }
        } else if instruction.is_ip_rel_memory_operand() {
            let slot = instruction.ip_rel_memory_address() as usize;
            let fixed = !is_writable(self.image, slot);
            fixed.then(|| self.image.pointer(slot)).flatten()
        } else if instruction.op0_kind() == OpKind::Register {
            let slot = self.state.slot(bit(instruction.op0_register()));
            let slot = slot.map(|slot| self.range.start.wrapping_add_signed(slot as isize));
            slot.and_then(|slot| self.image.pointer(slot))
        } else {
            None
        };
        match target {
            Some(Target::Code(address)) => Callee::Code(address),
            Some(Target::Import(name, _)) => Callee::Import(name),
            _ => Callee::Unknown,
        }
    }

    /// Which arguments a call receives, and of which colours.
    fn arguments(&self) -> (Arguments, Colours) {
        let mut arguments = 0;
        let mut colours = Colours::NONE;
        for (place, &register) in ARGUMENTS.iter().enumerate() {
            let held = self.state.colours(register);
            if held != Colours::NONE {
                arguments |= 1 << place;
                colours = colours.with(held);
            }
        }
        let stack = match self.state.distance(RSP) {
            Some(top) => self.state.between(top, top + MOST_GIVEN),
            None => self.state.somewhere(),
        };
        if stack != Colours::NONE {
            arguments |= ON_STACK;
            colours = colours.with(stack);
        }
        (arguments, colours)
    }

    /// Asks what a call does, and notes what it loses. Also returns which colours the call
    /// receives.
    fn ask(&mut self, instruction: &Instruction, ask: &mut Ask<'_>) -> (Answer, Colours) {
        let (arguments, given) = self.arguments();
        let callee = self.callee(instruction);
        let answer = ask(callee, arguments);
        if answer.loses {
            self.lose(given, "it is given to a function");
        }
        (answer, given)
    }

    fn call(&mut self, instruction: &Instruction, ask: &mut Ask<'_>) {
        self.mark();
        let exposed = self.exposed();
        self.lose(exposed, "its place in the frame is given away");
        let (answer, given) = self.ask(instruction, ask);
        let kept = self.state.colours(!SPOILED).with(self.state.somewhere());
        if kept.with(given).has(Colours::OWN) {
            self.escape.own.held = true;
        }
        let frame_given = ARGUMENTS
            .iter()
            .any(|&register| self.state.is_near(register));
        self.state.clear(SPOILED);
        for (place, &register) in RESULTS.iter().enumerate() {
            if frame_given {
                self.state.set_near(register);
            }
            if answer.returns >> place & 1 == 1 {
                self.state.add(register, given);
            }
            if answer.hands_out >> place & 1 == 1 {
                self.state.add(register, Colours::OWN);
            }
        }
    }

    /// What is in words of the frame that other code may read.
    fn exposed(&self) -> Colours {
        match *self.taken {
            i32::MAX => Colours::NONE,
            lowest => self.state.between(lowest, i32::MAX),
        }
    }

    fn jump(&mut self, instruction: &Instruction, ask: &mut Ask<'_>) -> Exits {
        let target = instruction.near_branch_target();
        let conditional = instruction.flow_control() == FlowControl::ConditionalBranch;
        if self.range.contains(&(target as usize)) && target as usize != self.range.start {
            return Exits {
                next: conditional,
                to: Some(target),
                by_table: false,
            };
        }
        if is_other_part(self.image, target as usize) && self.image.stub(target as usize).is_none()
        {
            let all = self.state.all();
            self.lose(all, "the function goes on in another part");
        }
        self.leave(instruction, ask);
        Exits {
            next: conditional,
            ..Exits::default()
        }
    }

    /// Handles a jump to another function, which takes the place of this one.
    fn leave(&mut self, instruction: &Instruction, ask: &mut Ask<'_>) {
        self.mark();
        let (answer, given) = self.ask(instruction, ask);
        if given.has(Colours::OWN) {
            self.escape.own.held = true;
        }
        let comes_back = |bits: Results, place: usize| bits >> place & 1 == 1;
        for place in 0..RESULTS.len() {
            if comes_back(answer.hands_out, place)
                || comes_back(answer.returns, place) && given.has(Colours::OWN)
            {
                self.escape.own.returns |= 1 << place;
            }
            if comes_back(answer.returns, place) && given.has(Colours::GIVEN) {
                self.escape.given.returns |= 1 << place;
            }
        }
    }

    fn jump_through(&mut self, instruction: &Instruction, ask: &mut Ask<'_>) -> Exits {
        let by_slot = instruction.op0_kind() == OpKind::Register
            && self.state.slot(bit(instruction.op0_register())).is_some();
        if by_slot || instruction.is_ip_rel_memory_operand() {
            self.leave(instruction, ask);
            return Exits::default();
        }
        let by_table = self.told && is_by_table(instruction, self.before.as_ref());
        if !by_table {
            let all = self.state.all();
            self.lose(all, "a jump that cannot be followed");
        }
        Exits {
            by_table,
            ..Exits::default()
        }
    }

    /// The place a memory operand names.
    fn place(&self, instruction: &Instruction) -> CodeLocation {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let bits = bit(base) | bit(index);
        let lonely = base == Register::None && index == Register::None;
        let distance = instruction.memory_displacement64();
        match instruction.memory_segment() {
            Register::FS if lonely && distance == 0 => return CodeLocation::ThreadPointer,
            Register::FS | Register::GS => return CodeLocation::Apart,
            _ => {}
        }
        if instruction.is_ip_rel_memory_operand() || lonely {
            return CodeLocation::Apart;
        }
        if index == Register::None
            && let Some(start) = self.state.distance(bit(base))
        {
            return CodeLocation::Frame(start.wrapping_add(distance as i32));
        }
        if self.state.is_near(bits) {
            return CodeLocation::SomeFrame;
        }
        match self.state.colours(bits) {
            Colours::NONE => CodeLocation::Anywhere,
            _ => CodeLocation::Apart,
        }
    }

    /// What is read from a place.
    fn read(&self, place: CodeLocation, size: i32) -> Colours {
        match place {
            CodeLocation::ThreadPointer => Colours::OWN,
            CodeLocation::Frame(start) => {
                let kept = self.state.between(start, start.saturating_add(size));
                match start >= BEHIND && self.stack_given {
                    true => kept.with(Colours::GIVEN),
                    false => kept,
                }
            }
            CodeLocation::SomeFrame if self.stack_given => {
                self.state.somewhere().with(Colours::GIVEN)
            }
            CodeLocation::SomeFrame => self.state.somewhere(),
            CodeLocation::Apart => Colours::NONE,
            CodeLocation::Anywhere => self.exposed(),
        }
    }

    /// Notes what is written to a place.
    fn write(&mut self, place: CodeLocation, size: i32, colours: Colours) {
        match place {
            CodeLocation::Frame(start) if start < BEHIND => {
                if !self.state.put(start, size, colours) {
                    self.lose(colours, "it is put into the frame in parts");
                }
            }
            _ => self.lose(colours, "it is put into memory"),
        }
    }

    /// Notes that an address in the frame is in a register, or somewhere else.
    fn take_frame(&mut self, distance: i32) {
        *self.taken = (*self.taken).min(distance);
        if distance >= BEHIND && self.stack_given {
            self.lose(Colours::GIVEN, "its place on the stack is taken");
        }
    }

    /// Puts an address in the frame into a register. The stack pointer and the frame pointer always
    /// hold one, so those do not count as taken.
    fn set_frame(&mut self, register: u32, distance: i32) {
        self.state.set_distance(register, distance);
        if register & (RSP | RBP) == 0 {
            self.take_frame(distance);
        }
    }

    /// Handles moves, and instructions that change the stack pointer.
    fn usual_form(&mut self, instruction: &Instruction) -> bool {
        let into = bit(instruction.op0_register());
        match instruction.code() {
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Register =>
            {
                let from = bit(instruction.op1_register());
                self.state.copy(into, from);
                if let Some(distance) = self.state.distance(from) {
                    self.set_frame(into, distance);
                }
            }
            Code::Mov_r64_rm64 if instruction.is_ip_rel_memory_operand() => {
                self.state.clear(into);
                let slot = instruction.ip_rel_memory_address() as usize;
                let distance = slot.wrapping_sub(self.range.start) as isize;
                if let Ok(distance) = i32::try_from(distance)
                    && !is_writable(self.image, slot)
                {
                    self.state.set_slot(into, distance);
                }
            }
            Code::Lea_r64_m => self.lea(instruction, into),
            Code::Add_rm64_imm8
            | Code::Add_rm64_imm32
            | Code::Sub_rm64_imm8
            | Code::Sub_rm64_imm32
                if instruction.op0_kind() == OpKind::Register
                    && self.state.distance(into).is_some() =>
            {
                let step = instruction.immediate(1) as i32;
                let step = match instruction.mnemonic() {
                    Mnemonic::Sub => step.wrapping_neg(),
                    _ => step,
                };
                let distance = self.state.distance(into).unwrap_or(0);
                self.set_frame(into, distance.wrapping_add(step));
            }
            Code::Push_r64 => {
                let from = instruction.op0_register();
                let colours = self.state.colours(bit(from));
                self.note_frame(bit(from));
                self.push(colours);
            }
            Code::Pushq_imm8 | Code::Pushq_imm32 => self.push(Colours::NONE),
            Code::Pop_r64 => {
                self.pop(into);
            }
            Code::Leaveq => {
                self.state.copy(RSP, RBP);
                self.pop(RBP);
            }
            _ if sets_low_byte(instruction) => self.set_low_byte(instruction, into),
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Register
                    && instruction.op0_register() == instruction.op1_register() =>
            {
                self.state.clear(into);
            }
            _ => return false,
        }
        true
    }

    /// Handles a write of a register's low byte. Compilers treat the other bytes of the register as
    /// garbage then. So this relies on no code replacing the low byte of an address that it keeps.
    fn set_low_byte(&mut self, instruction: &Instruction, into: u32) {
        let moved = instruction.mnemonic() == Mnemonic::Mov;
        let source = match instruction.op1_kind() {
            OpKind::Register if moved => self.state.colours(bit(instruction.op1_register())),
            OpKind::Memory if moved => self.read(self.place(instruction), 1),
            _ => Colours::NONE,
        };
        if source == Colours::NONE {
            self.state.clear(into);
        } else {
            self.state.forget_slots(into);
            self.state.add(into, source);
        }
    }

    /// Moves the stack pointer by a known distance.
    fn move_stack(&mut self, step: i32) {
        match self.state.distance(RSP) {
            Some(top) => self.state.set_distance(RSP, top.wrapping_add(step)),
            None => self.state.set_near(RSP),
        }
    }

    /// Where the stack pointer points to.
    fn top(&self) -> CodeLocation {
        let top = self.state.distance(RSP);
        top.map_or(CodeLocation::SomeFrame, CodeLocation::Frame)
    }

    fn push(&mut self, colours: Colours) {
        self.move_stack(-8);
        self.write(self.top(), 8, colours);
    }

    fn pop(&mut self, into: u32) {
        let colours = self.read(self.top(), 8);
        self.state.clear(into);
        self.state.add(into, colours);
        self.move_stack(8);
    }

    fn lea(&mut self, instruction: &Instruction, into: u32) {
        if instruction.is_ip_rel_memory_operand() {
            return self.state.clear(into);
        }
        let (base, index) = (
            bit(instruction.memory_base()),
            bit(instruction.memory_index()),
        );
        let distance = match index {
            0 => self.state.distance(base),
            _ => None,
        };
        if let Some(start) = distance {
            let distance = start.wrapping_add(instruction.memory_displacement64() as i32);
            return self.set_frame(into, distance);
        }
        let colours = self.state.colours(base | index);
        let near = self.state.is_near(base | index);
        self.note_frame(base | index);
        self.state.clear(into);
        self.state.add(into, colours);
        if near {
            self.state.set_near(into);
        }
    }

    /// Notes that registers with an address in the frame are stored somewhere, or computed with.
    fn note_frame(&mut self, registers: u32) {
        for number in 0..16 {
            let register = 1 << number & registers;
            if let Some(distance) = self.state.distance(register) {
                self.take_frame(distance);
            }
        }
    }

    /// Handles any other instruction: what it reads goes wherever it writes.
    fn any_form(&mut self, instruction: &Instruction) {
        let mut places = 0;
        let mut place = CodeLocation::Apart;
        let size = instruction.memory_size().size().max(1) as i32;
        let memory = has_memory(instruction);
        if memory {
            places = bit(instruction.memory_base()) | bit(instruction.memory_index());
            place = self.place(instruction);
        }
        let info = self.info.info(instruction);
        let (mut read, mut named, mut written, mut kept, mut vectors) = (0, 0, 0, 0, false);
        let (mut loads, mut stores) = (false, false);
        for operand in 0..instruction.op_count() {
            let access = info.op_access(operand);
            match instruction.op_kind(operand) {
                OpKind::Register => {
                    let bit = bit(instruction.op_register(operand));
                    named |= bit;
                    read |= if reads(access) { bit } else { 0 };
                }
                OpKind::Memory => {
                    loads |= reads(access);
                    stores |= writes(access);
                }
                _ => {}
            }
        }
        for register in info.used_registers() {
            let bit = bit(register.register());
            let access = register.access();
            if reads(access) && named & bit == 0 && places & bit == 0 {
                read |= bit;
            }
            if writes(access) {
                written |= bit;
                vectors |= bit == 0 && !register.register().is_segment_register();
                let whole = matches!(access, OpAccess::Write | OpAccess::ReadWrite)
                    && register.register().size() >= 4;
                kept |= if whole { 0 } else { bit };
            }
        }
        let moves_blocks = info.used_memory().len() > usize::from(memory);
        let mut sources = self.state.colours(read);
        let loaded = match loads {
            true => self.read(place, size),
            false => Colours::NONE,
        };
        if matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) {
            return self.compare(instruction, loads, loaded);
        }
        sources = sources.with(loaded);
        if moves_blocks {
            // A string instruction, or `push` and the like in another form.
            let all = sources.with(self.state.somewhere());
            self.lose(all, "memory is copied");
        }
        let near = self.state.is_near(read & !RSP);
        self.note_frame(read & !RSP);
        if stores {
            self.write(place, size, sources);
        }
        if vectors {
            self.lose(sources, "it is in another register");
        }
        self.state.clear(written & !kept & !RSP);
        self.state.forget_slots(written);
        self.state.add(written, sources);
        // If a register is written only perhaps or partly, something of the old value may be left.
        let perhaps = self.state.in_frame(written & (kept | RSP));
        self.note_frame(perhaps & !RSP);
        self.state.set_near(perhaps);
        if near {
            self.state.set_near(written);
        }
    }

    /// Handles a comparison. An address may be compared with a number, and with another address of
    /// a thread-local.
    fn compare(&mut self, instruction: &Instruction, loads: bool, loaded: Colours) {
        let mut all = loaded;
        let mut plain = loads && loaded == Colours::NONE;
        for operand in 0..2 {
            if instruction.op_kind(operand) == OpKind::Register {
                let held = self.state.colours(bit(instruction.op_register(operand)));
                all = all.with(held);
                plain |= held == Colours::NONE;
            }
        }
        if plain {
            self.lose(all, "it is compared");
        }
    }
}

/// Whether a register's low byte is written, by a move or from a flag.
fn sets_low_byte(instruction: &Instruction) -> bool {
    let register = instruction.op0_register();
    let high = [Register::AH, Register::BH, Register::CH, Register::DH].contains(&register);
    let flag = instruction.condition_code() != ConditionCode::None;
    register.is_gpr8() && !high && (flag || instruction.mnemonic() == Mnemonic::Mov)
}

fn reads(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess
    )
}

fn writes(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
    )
}
