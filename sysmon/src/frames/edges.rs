//! Reads from a function's machine code which thread-locals it touches and what it leads to.
//!
//! An *edge* is anything that could make another function run, now or later ([S5]):
//!
//! - a direct call or jump;
//! - a word read from a constant place: a slot that the loader filled in, or an entry of a table;
//! - the address of a function;
//! - the address of a constant, whose pointers all count (`constants`).
//!
//! A call through a register needs no edge of its own: the value in the register came from one of
//! these, or from writable memory, which is where the analysis ends.
//!
//! A constant *read* at a fixed place leads exactly where the bytes read lead. Only a constant
//! whose *address is taken* stands for all of itself, and perhaps for its neighbours (`moves`): a
//! loop may begin at the end of a table, or one entry before it.
//!
//! Nearly all functions consist of ordinary instructions. A decoder that knows only those reads
//! them (`quick`, `brief`), because a program's debug build compiles this code without
//! optimization. If that decoder meets an instruction it does not know, it leaves the function to
//! the complete decoder.
//!
//! A function *touches* its thread by:
//!
//! - every operand with an `fs:` segment, except the stack protector's;
//! - every slot that holds a thread-local's offset or module;
//! - `rdfsbase`, and loading the segment register itself.
//!
//! `flow` works out which variable is touched, where that is possible. An instruction that cannot
//! be decoded makes the function unknown, and so does a branch into the middle of an instruction
//! (`starts`).
//!
//! `__errno_location` returns the address of a thread-local, so a function that keeps this address
//! is bound. Almost every system call is followed by a call of `__errno_location`, and nearly all
//! of these read the number at once and drop the address. `flow` recognizes those, and they do not
//! count as touching. (The number itself is meaningless after a park, on any thread: other code
//! that ran on the thread meanwhile made system calls, too.)
//!
//! A function that asks the kernel directly, by the instruction or by libc's `syscall`, may ask for
//! anything of its thread. `flow` finds the number of the system call, and a list names the
//! harmless ones (`harmless::kernel`). Some registers of the thread are neither preserved nor
//! spoiled by calls, such as its rounding mode and protection rights; a function that loads one
//! touches it (`control`).
//!
//! [S5]: ../../../docs/invariants.md

mod brief;
mod control;
pub(crate) mod escape;
mod flow;
mod motion;
mod moves;
mod pointers;
mod quick;
mod starts;
#[cfg(test)]
pub(super) mod tests;

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use self::motion::Motion;
pub(crate) use self::moves::Reach;
use self::moves::{Fate, Moves};
use self::pointers::Indirect;
pub(crate) use self::pointers::is_of_key;
use self::starts::Starts;
use super::image::memory::Kind;
use super::image::relocs::Slot;
use super::image::unwind::Function;
use super::image::{Image, Target};

/// Offset of the stack protector's secret, which is the same for every thread.
const PROTECTOR: u64 = 0x28;
/// Name of the function that returns the address of `errno`, a thread-local.
pub(crate) const ERRNO: &str = "__errno_location";
/// Name of libc's function that makes the system call its first argument selects.
pub(crate) const SYSCALL: &str = "syscall";

/// Kind of an edge from one thing to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum How {
    Call = 0,
    Jump = 1,
    /// Takes the target's address, or reads it from a constant.
    Refer = 2,
}

/// How a function touches the thread it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// A thread-local of the executable, at this offset from the thread pointer.
    Variable(i64),
    /// The thread pointer is in a result register when the function returns. Often it is only a
    /// leftover there.
    Returned,
    /// The address of errno, kept beyond the next call.
    Errno,
    /// A direct system call, with its number if that is known.
    Kernel(Option<i64>),
    /// A thread-local that cannot be identified; the text says what was seen.
    Unknown(&'static str),
}

/// Everything found in one function.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) code: Vec<(usize, How)>,
    pub(crate) constants: Vec<Use>,
    pub(crate) imports: Vec<(u32, usize, How)>,
    pub(crate) foreign: Vec<usize>,
    /// Each with the address of its instruction.
    pub(crate) touches: Vec<(usize, Touch)>,
    pub(crate) pointers: PointerCalls,
}

/// Calls of, and jumps to, addresses in registers or in writable memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PointerCalls {
    /// Where the first one is, as an offset into the function.
    first: Option<usize>,
}

impl PointerCalls {
    pub(crate) fn any(&self) -> bool {
        self.first.is_some()
    }

    fn add(&mut self, at: usize) {
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
    }
}

/// A constant whose address is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) address: usize,
    /// How far the address may be from the constant that is meant. It may be the constant's end.
    pub(crate) reach: Reach,
    /// The constant may be a table of 32-bit distances from itself.
    pub(crate) distances: bool,
    /// The address is passed to one of std's functions for thread-locals, and goes nowhere else.
    pub(crate) given: bool,
}

/// Decodes one function after another and reuses its memory.
#[derive(Default)]
pub(crate) struct Reader {
    instructions: Vec<Instruction>,
    starts: Starts,
    flow: flow::Flow,
    pub(crate) facts: Facts,
}

impl Facts {
    fn clear(&mut self) {
        self.code.clear();
        self.constants.clear();
        self.imports.clear();
        self.foreign.clear();
        self.touches.clear();
        self.pointers = PointerCalls::default();
    }
}

/// Properties of an instruction that leads somewhere.
struct Form {
    ip: usize,
    how: How,
    /// Number of bytes that it reads or writes.
    size: usize,
    /// Its target is part of the instruction: relative, and not in a register.
    seen: bool,
    /// Does not simply continue with the next instruction.
    turns: bool,
    /// Loads a whole register.
    load: bool,
    /// Adds to a whole register.
    adds: bool,
}

impl Form {
    fn of(instruction: &Instruction) -> Form {
        let flow = instruction.flow_control();
        let near = has_near_target(instruction);
        Form {
            ip: instruction.ip() as usize,
            how: match flow {
                FlowControl::Call | FlowControl::IndirectCall => How::Call,
                _ if near => How::Jump,
                FlowControl::IndirectBranch => How::Jump,
                _ => How::Refer,
            },
            size: instruction.memory_size().size().max(1),
            seen: near || instruction.is_ip_rel_memory_operand(),
            turns: flow != FlowControl::Next,
            load: instruction.code() == Code::Mov_r64_rm64,
            adds: instruction.code() == Code::Add_r64_rm64,
        }
    }
}

/// Where the address of a constant goes.
#[derive(Clone, Copy)]
enum Into {
    Register(Register),
    /// The instruction uses it at once, with an index.
    Operand(Reach),
    /// It was read from a constant word.
    Word,
}

/// A constant's address that is taken, where it goes, and the place behind that instruction.
struct Taken {
    address: usize,
    into: Into,
    next: usize,
    /// The address of the next instruction.
    end: usize,
}

/// State of the reader while it reads one function.
struct Pass<'a> {
    image: &'a Image,
    range: Range<usize>,
    facts: &'a mut Facts,
    /// Where instructions begin and branches lead, see `starts`.
    marks: &'a mut [u8],
    /// Addresses of constants that the function takes.
    taken: Vec<Taken>,
    /// The place behind the current instruction, in the units of the decoder that runs.
    next: usize,
    /// The address of that place.
    end: usize,
    /// Registers that are the base of a table of distances.
    distances: u32,
    /// Calls of registers, and jumps to them.
    indirect: Vec<Indirect>,
    /// The function contains something that `flow` must follow.
    follow: bool,
}

impl Reader {
    /// Fills `facts` with what the function does.
    pub(crate) fn read(&mut self, image: &Image, function: &Function) {
        self.facts.clear();
        if !quick::read(image, function, &mut self.starts, &mut self.facts) {
            self.facts.clear();
            self.read_fully(image, function);
        }
    }

    /// Does the same with the complete decoder.
    fn read_fully(&mut self, image: &Image, function: &Function) {
        let range = function.range.clone();
        let bytes = image.memory.bytes(range.clone()).unwrap_or_default();
        decode(bytes, range.start, &mut self.instructions);
        let marks = self.starts.of(bytes.len());
        let mut pass = Pass::new(image, &range, marks, &mut self.facts);
        if bytes.len() < range.len() {
            pass.unknown(range.start, "code that is not mapped");
        }
        for (place, instruction) in self.instructions.iter().enumerate() {
            pass.next = place + 1;
            pass.end = instruction.next_ip() as usize;
            pass.marks[instruction.ip() as usize - range.start] |= starts::START;
            pass.instruction(instruction);
            if let FlowControl::IndirectCall | FlowControl::IndirectBranch =
                instruction.flow_control()
            {
                pass.indirect_call(instruction, &self.instructions[..place]);
            }
        }
        let padded = [bytes, &[0; brief::MARGIN]].concat();
        if let Some(code) = brief::Code::new(&padded, bytes.len()) {
            pass.note_indirect(&code);
        }
        if starts::are_missed(pass.marks) {
            pass.unknown(range.start, "a branch into the middle of an instruction");
        }
        pass.fall_through(&self.instructions);
        let instructions = &self.instructions;
        pass.finish(|place| instructions[place..].iter().map(Motion::of));
        pass.note_given();
        if pass.follow {
            let touches = &mut self.facts.touches;
            self.flow
                .follow(image, function, &self.instructions, touches);
        }
    }
}

impl<'a> Pass<'a> {
    fn new(
        image: &'a Image,
        range: &Range<usize>,
        marks: &'a mut [u8],
        facts: &'a mut Facts,
    ) -> Pass<'a> {
        Pass {
            image,
            range: range.clone(),
            facts,
            marks,
            taken: Vec::new(),
            next: 0,
            end: 0,
            distances: 0,
            indirect: Vec::new(),
            follow: false,
        }
    }
}

impl Pass<'_> {
    fn unknown(&mut self, ip: usize, why: &'static str) {
        self.facts.touches.push((ip, Touch::Unknown(why)));
    }

    fn instruction(&mut self, instruction: &Instruction) {
        let ip = instruction.ip() as usize;
        match instruction.mnemonic() {
            Mnemonic::INVALID => return self.unknown(ip, "an instruction that cannot be decoded"),
            Mnemonic::Nop | Mnemonic::Endbr64 => return,
            Mnemonic::Rdfsbase | Mnemonic::Wrfsbase | Mnemonic::Rdgsbase | Mnemonic::Wrgsbase => {
                self.unknown(ip, "the thread pointer");
            }
            Mnemonic::Syscall => self.follow = true,
            Mnemonic::Sysenter | Mnemonic::Int => {
                self.facts.touches.push((ip, Touch::Kernel(None)));
            }
            mnemonic if control::loads(mnemonic) => self.unknown(ip, control::REGISTERS),
            Mnemonic::Mov | Mnemonic::Pop | Mnemonic::Lfs | Mnemonic::Lgs
                if control::loads_segment(instruction) =>
            {
                self.unknown(ip, control::SEGMENTS);
            }
            _ => {}
        }
        if has_near_target(instruction) {
            let target = instruction.near_branch_target() as usize;
            self.branch(target, &Form::of(instruction));
        }
        if has_memory(instruction) {
            self.operand(instruction);
        } else if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
            self.unknown(ip, "a string instruction on thread-locals");
        }
        if self.image.fixed {
            self.immediates(instruction);
        }
    }

    fn branch(&mut self, target: usize, form: &Form) {
        if self.range.contains(&target) && target != self.range.start {
            return starts::lead_to(self.marks, target - self.range.start);
        }
        let no_start = self.is_no_start(target);
        match no_start.then(|| self.image.stub(target)).flatten() {
            Some(slot) => self.word(slot, form),
            None => self.facts.code.push((target, form.how)),
        }
    }

    fn is_no_start(&self, target: usize) -> bool {
        let function = self.image.function_at(target);
        function.is_none_or(|f| self.image.functions[f].range.start != target)
    }

    /// Notes what the memory operand of an instruction touches or leads to.
    fn operand(&mut self, instruction: &Instruction) {
        let ip = instruction.ip() as usize;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let address_only = instruction.mnemonic() == Mnemonic::Lea;
        match instruction.memory_segment() {
            Register::FS if !address_only => return self.thread_operand(instruction),
            Register::GS if !address_only => return self.unknown(ip, "a segment"),
            _ => {}
        }
        if instruction.mnemonic() == Mnemonic::Movsxd && instruction.memory_index_scale() == 4 {
            self.distances |= bit(base);
        }
        let address = if instruction.is_ip_rel_memory_operand() {
            instruction.ip_rel_memory_address() as usize
        } else if self.image.fixed {
            instruction.memory_displacement64() as usize
        } else {
            return;
        };
        let plain = instruction.is_ip_rel_memory_operand()
            || base == Register::None && index == Register::None;
        if address_only || !plain {
            let into = if address_only && plain {
                Into::Register(instruction.op0_register())
            } else {
                Into::Operand(self.folded(address, instruction))
            };
            self.take(address, into);
        } else {
            self.read_at(address, &Form::of(instruction));
        }
    }

    /// How far an address with an index may be from the table that is meant. Pointers are read as
    /// whole words. A jump through a table of the function's own labels shows where that table
    /// begins.
    fn folded(&self, address: usize, instruction: &Instruction) -> Reach {
        let whole =
            instruction.mnemonic() == Mnemonic::Lea || instruction.memory_size().size() >= 8;
        let jump = instruction.flow_control() == FlowControl::IndirectBranch;
        let label = |at| {
            self.image
                .memory
                .word(at)
                .is_some_and(|to| self.range.contains(&to))
        };
        match whole && !(jump && label(address)) {
            true => Reach::FAR,
            false => Reach::FOLDED,
        }
    }

    /// Notes an operand with an `fs:` segment.
    fn thread_operand(&mut self, instruction: &Instruction) {
        let ip = instruction.ip() as usize;
        let lonely = instruction.memory_base() == Register::None
            && instruction.memory_index() == Register::None;
        let offset = instruction.memory_displacement64() as i64;
        match offset {
            _ if instruction.mnemonic() == Mnemonic::Nop => {}
            // Which variable this is depends on where the code was mapped.
            _ if instruction.is_ip_rel_memory_operand() => {
                self.unknown(ip, "a thread-local relative to the code");
            }
            _ if !lonely => self.follow = true,
            0 => self.follow = true,
            _ if offset as u64 == PROTECTOR => {}
            _ if offset < 0 => self.facts.touches.push((ip, Touch::Variable(offset))),
            _ => self.unknown(ip, "the thread's control block"),
        }
    }

    /// Notes a constant place that is read, or called through.
    fn read_at(&mut self, address: usize, form: &Form) {
        let size = form.size;
        let image = self.image;
        let kind = image.memory.kind(address);
        let constant = matches!(kind, Some(Kind::Constant | Kind::Variable));
        if image.fixed && constant {
            for at in (address & !7..address + size).step_by(8) {
                self.word(at, form);
            }
            return;
        }
        let range = address.saturating_sub(7)..address + size;
        for &(at, slot) in image.slots.within(&range) {
            if constant || !matches!(slot, Slot::Pointer | Slot::Copied) {
                self.word(at, form);
            }
        }
    }

    /// Notes a word that is read. Where it is the slot of `__errno_location` or `syscall`, and the
    /// instruction loads it into a register or calls through it, `flow` follows it instead.
    fn word(&mut self, at: usize, form: &Form) {
        let (ip, how) = (form.ip, form.how);
        let Some(target) = self.image.pointer(at) else {
            return;
        };
        match target {
            Target::Import(name, _) if flow::follows(self.image.slots.name(name), form) => {
                self.follow = true;
            }
            Target::Import(name, value) => self.facts.imports.push((name, value, how)),
            Target::Code(address) => self.code(address, how),
            Target::Constant(address) => self.take(address, Into::Word),
            // `flow` understands an offset that is loaded, or added to something.
            Target::ThreadOffset(_) if form.load || form.adds => self.follow = true,
            Target::ThreadOffset(_) => self.unknown(ip, "an offset of a thread-local"),
            Target::ThreadLocal => self.unknown(ip, "a thread-local of a library"),
            Target::Foreign(address) => self.facts.foreign.push(address),
        }
    }

    /// Notes that an address is taken. `into` is a register if that is all that happens.
    fn take(&mut self, address: usize, into: Into) {
        let target = match self.image.fixed {
            true => self.image.guess(address),
            false => self.image.address(address),
        };
        if let Some(Target::Code(address)) = target {
            self.code(address, How::Refer);
        }
        // The constant that is meant may be far from the address itself.
        let far = matches!(into, Into::Operand(Reach::FAR)) && self.image.is_near(address);
        if far || matches!(target, Some(Target::Constant(_))) {
            self.taken.push(Taken {
                address,
                into,
                next: self.next,
                end: self.end,
            });
        }
    }

    /// Notes a function's address, unless it lies in the middle of this function.
    fn code(&mut self, address: usize, how: How) {
        if !self.range.contains(&address) || address == self.range.start {
            self.facts.code.push((address, how));
        }
    }

    /// Notes immediates: in an image with a fixed address, any number may be an address.
    fn immediates(&mut self, instruction: &Instruction) {
        for operand in 0..instruction.op_count() {
            let wide = matches!(
                instruction.op_kind(operand),
                OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64
            );
            if wide {
                let into = match instruction.op0_kind() {
                    OpKind::Register => Into::Register(instruction.op0_register()),
                    _ => Into::Word,
                };
                self.take(instruction.immediate(operand) as usize, into);
            }
        }
    }

    /// Adds an edge to the next function if the last instruction continues there.
    fn fall_through(&mut self, code: &[Instruction]) {
        let mut last = code.iter().rev();
        let last = last.find(|instruction| instruction.mnemonic() != Mnemonic::Nop);
        // A function of nothing but padding continues, too; `hlt` ends a program.
        let goes_on = last.is_none_or(|last| {
            matches!(
                last.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            ) && last.mnemonic() != Mnemonic::Hlt
        });
        if goes_on {
            self.go_on();
        }
    }

    /// Adds an edge to the code behind the function's end. It does so even where no function is
    /// known: then the edge makes this function bound, because the code that runs there was not
    /// read.
    fn go_on(&mut self) {
        self.facts.code.push((self.range.end, How::Jump));
    }

    /// Adds the constants once the whole function is known. `code` reads it again from a place.
    fn finish<I: Iterator<Item = Motion>>(&mut self, code: impl Fn(usize) -> I) {
        let mut moves = None;
        for taken in &self.taken {
            let mut distances = false;
            let reach = match taken.into {
                Into::Register(register) => {
                    let register = bit(register);
                    let fate = Fate::of(register, code(taken.next));
                    let (mut holders, mut reach) = (register, Reach::default());
                    if !fate.is_over() {
                        let moves = moves.get_or_insert_with(|| Moves::read(code(0)));
                        let held = moves.holders(register, &fate);
                        (holders, reach) = (holders | held, moves.reach(held));
                    }
                    distances = self.distances & holders != 0;
                    reach
                }
                Into::Operand(reach) => reach,
                Into::Word => Reach::default(),
            };
            self.facts.constants.push(Use {
                address: taken.address,
                reach,
                distances,
                given: false,
            });
        }
    }
}

/// Decodes code that begins at an address.
fn decode(bytes: &[u8], start: usize, into: &mut Vec<Instruction>) {
    into.clear();
    let mut decoder = Decoder::with_ip(64, bytes, start as u64, DecoderOptions::NONE);
    while decoder.can_decode() {
        let place = into.len();
        into.push(Instruction::default());
        decoder.decode_out(&mut into[place]);
    }
}

fn has_near_target(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory)
}

/// Whether a pointer at a place may have changed since the image was loaded.
fn is_writable(image: &Image, slot: usize) -> bool {
    image.memory.kind(slot) != Some(Kind::Constant)
}

/// Returns one bit for each general register, whichever part of it is named.
fn bit(register: Register) -> u32 {
    let full = register.full_register();
    if !full.is_gpr64() {
        return 0;
    }
    1 << (full as u32 - Register::RAX as u32)
}
