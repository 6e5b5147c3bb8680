//! Tests with real instructions, assembled into this program and read back.

#![expect(unsafe_code, reason = "samples in assembly")]

use super::*;
use crate::frames::image::memory::Memory;

/// Defines a function in assembly, with symbols for its beginning and end.
macro_rules! sample {
    ($module:ident, $($line:literal),+ $(,)?) => {
        mod $module {
            core::arch::global_asm!(
                concat!(".globl indent_sample_", stringify!($module)),
                concat!(".globl indent_sample_end_", stringify!($module)),
                concat!("indent_sample_", stringify!($module), ":"),
                $($line),+,
                concat!("indent_sample_end_", stringify!($module), ":"),
            );
            unsafe extern "C" {
                #[link_name = concat!("indent_sample_", stringify!($module))]
                static START: u8;
                #[link_name = concat!("indent_sample_end_", stringify!($module))]
                static END: u8;
            }
            pub(super) fn range() -> std::ops::Range<usize> {
                (&raw const START) as usize..(&raw const END) as usize
            }
        }
    };
}
pub(in crate::frames) use sample;

/// Reads a function, in an image that has nothing else.
fn facts(range: Range<usize>) -> Facts {
    let mut memory = Memory::default();
    // SAFETY: code of this program.
    unsafe { memory.add(range.clone(), Kind::Text, true) };
    facts_in(memory, range)
}

/// Reads a function in an image with this memory.
fn facts_in(memory: Memory, range: Range<usize>) -> Facts {
    let (image, function) = alone(memory, range);
    let mut reader = Reader::default();
    reader.read(&image, &function);
    reader.facts
}

/// Builds an image with this memory, and one function.
pub(super) fn alone(memory: Memory, range: Range<usize>) -> (Image, Function) {
    let image = Image {
        range: range.start..range.end + 64,
        memory,
        ..Image::default()
    };
    (image, function(range))
}

/// Describes a function that lies at this range.
pub(in crate::frames) fn function(range: Range<usize>) -> Function {
    Function {
        range,
        cold: false,
        handlers: None,
    }
}

fn touches(range: Range<usize>) -> Vec<Touch> {
    let mut touches: Vec<Touch> = Vec::new();
    for (_, touch) in facts(range).touches {
        if !touches.contains(&touch) {
            touches.push(touch);
        }
    }
    touches
}

fn is_lost(range: Range<usize>) -> bool {
    let touches = touches(range);
    let lost = |touch: &Touch| matches!(touch, Touch::Unknown(_));
    touches.iter().any(lost)
}

sample!(local, "mov dword ptr fs:[-0x38], 1", "ret");
sample!(protector, "mov rax, fs:[0x28]", "ret");
sample!(control_block, "mov rax, fs:[0x10]", "ret");
sample!(base, "rdfsbase rax", "ret");
sample!(address_only, "lea rax, [rdi + 8]", "ret");

#[test]
fn an_operand_names_its_variable() {
    assert_eq!(touches(local::range()), [Touch::Variable(-0x38)]);
    assert_eq!(touches(protector::range()), []);
    assert_eq!(touches(address_only::range()), []);
    assert!(is_lost(control_block::range()));
    assert!(is_lost(base::range()));
}

sample!(jumps_by_a_number, "mov rax, -8", "jmp qword ptr fs:[rax]");
sample!(
    jumps_by_an_index,
    "mov rax, -1",
    "jmp qword ptr fs:[rax*8 - 8]"
);
sample!(jumps_by_anything, "jmp qword ptr fs:[rax*8 - 8]");
sample!(
    jumps_by_the_control_block,
    ".byte 0x64, 0xff, 0x24, 0x25, 0, 0, 0, 0", // jmp fs:[0]
);
sample!(jumps_by_a_variable, "jmp qword ptr fs:[-8]");

#[test]
fn a_jump_through_a_thread_local_touches_it() {
    let first = [Touch::Variable(-8)];
    assert_eq!(touches(jumps_by_a_number::range()), first);
    assert_eq!(touches(jumps_by_an_index::range()), [Touch::Variable(-16)]);
    assert_eq!(touches(jumps_by_a_variable::range()), first);
    assert!(is_lost(jumps_by_anything::range()));
    assert!(is_lost(jumps_by_the_control_block::range()));
}

sample!(
    reads_beside_the_code,
    ".byte 0x64, 0x48, 0x8b, 0x05, 8, 0, 0, 0", // mov rax, fs:[rip + 8]
    "ret",
);
sample!(
    calls_beside_the_code,
    ".byte 0x64, 0xff, 0x15, 8, 0, 0, 0", // call fs:[rip + 8]
    "ret",
);
sample!(
    jumps_beside_the_code,
    ".byte 0x64, 0xff, 0x25, 8, 0, 0, 0", // jmp fs:[rip + 8]
);
sample!(
    reads_beside_the_short_address,
    ".byte 0x67, 0x64, 0x8b, 0x05, 8, 0, 0, 0", // mov eax, fs:[eip + 8]
    "ret",
);

#[test]
fn a_thread_local_at_a_distance_from_the_code_is_touched() {
    assert!(is_lost(reads_beside_the_code::range()));
    assert!(is_lost(calls_beside_the_code::range()));
    assert!(is_lost(jumps_beside_the_code::range()));
    assert!(is_lost(reads_beside_the_short_address::range()));
}

sample!(moves_the_segment, "mov fs, eax", "ret");
sample!(
    moves_the_segment_from_memory,
    "mov fs, word ptr [rdi]",
    "ret"
);
sample!(pops_the_segment, ".byte 0x0f, 0xa1", "ret");
sample!(loads_the_segment, ".byte 0x0f, 0xb4, 0x07", "ret");
sample!(moves_the_other_segment, "mov gs, eax", "ret");
sample!(pops_the_other_segment, ".byte 0x0f, 0xa9", "ret");
sample!(loads_the_other_segment, ".byte 0x0f, 0xb5, 0x07", "ret");
sample!(reads_the_segment, "mov eax, fs", "ret");

#[test]
fn loading_a_thread_segment_touches_and_reading_it_does_not() {
    assert!(is_lost(moves_the_segment::range()));
    assert!(is_lost(moves_the_segment_from_memory::range()));
    assert!(is_lost(pops_the_segment::range()));
    assert!(is_lost(loads_the_segment::range()));
    assert!(is_lost(moves_the_other_segment::range()));
    assert!(is_lost(pops_the_other_segment::range()));
    assert!(is_lost(loads_the_other_segment::range()));
    assert_eq!(touches(reads_the_segment::range()), []);
}

sample!(relaxed, "mov rax, fs:[0]", "lea rax, [rax - 0x38]", "ret");
sample!(
    two_variables,
    "push rbx",
    "mov rbx, fs:[0]",
    "inc dword ptr [rbx - 0x38]",
    "call rdi",
    "mov dword ptr [rbx - 0x40], 0",
    "pop rbx",
    "ret",
);
sample!(
    number,
    "push rbx",
    "mov rbx, -0x28",
    "cmp byte ptr fs:[rbx + 0x10], 1",
    "jne 2f",
    "mov rax, fs:[rbx]",
    "2: pop rbx",
    "ret",
);
sample!(added, "mov rax, -0x48", "add rax, fs:[0]", "ret");
sample!(
    added_last,
    "mov rcx, fs:[0]",
    "mov rdx, rcx",
    "add rdx, -0x50",
    "mov rax, rdx",
    "ret",
);

#[test]
fn the_usual_forms_are_understood() {
    assert_eq!(touches(relaxed::range()), [Touch::Variable(-0x38)]);
    assert_eq!(
        touches(two_variables::range()),
        [Touch::Variable(-0x38), Touch::Variable(-0x40)]
    );
    assert_eq!(
        touches(number::range()),
        [Touch::Variable(-0x18), Touch::Variable(-0x28)]
    );
    assert_eq!(touches(added::range()), [Touch::Variable(-0x48)]);
    assert_eq!(touches(added_last::range()), [Touch::Variable(-0x50)]);
}

sample!(returned, "mov rax, fs:[0]", "ret");
sample!(passed, "mov rdi, fs:[0]", "call rsi", "ret");
sample!(
    spilled,
    "mov rax, fs:[0]",
    "mov [rsp - 8], rax",
    "xor eax, eax",
    "ret"
);
sample!(
    indexed,
    "mov rax, fs:[0]",
    "mov eax, [rax + rdi - 8]",
    "ret"
);
sample!(
    joined,
    "mov rbx, -0x28",
    "test edi, edi",
    "je 2f",
    "mov rbx, -0x30",
    "2: mov rax, fs:[rbx]",
    "ret",
);
sample!(unknown_number, "mov rax, fs:[rdi]", "ret");
sample!(tail, "mov rdi, fs:[0]", "jmp rsi");
sample!(
    jump_table,
    "mov rbx, fs:[0]",
    "jmp rax",
    "mov eax, [rbx - 8]",
    "ret",
);

#[test]
fn a_thread_pointer_that_goes_elsewhere_is_lost() {
    assert_eq!(touches(returned::range()), [Touch::Returned]);
    assert!(is_lost(passed::range()));
    assert!(is_lost(spilled::range()));
    assert!(is_lost(indexed::range()));
    assert!(is_lost(joined::range()));
    assert!(is_lost(unknown_number::range()));
    assert!(is_lost(tail::range()));
    assert!(is_lost(jump_table::range()));
}

sample!(
    kept_over_a_branch,
    "mov rax, fs:[0]",
    "test edi, edi",
    "je 2f",
    "mov ecx, [rax - 8]",
    "2: mov rdx, rax",
    "mov eax, [rdx - 16]",
    "xor edx, edx",
    "ret",
);

#[test]
fn a_thread_pointer_is_followed_over_branches_and_copies() {
    let touched = touches(kept_over_a_branch::range());
    assert_eq!(touched, [Touch::Variable(-8), Touch::Variable(-16)]);
}

sample!(asks, "mov eax, 39", "syscall", "ret");
sample!(asks_for_zero, "xor eax, eax", "syscall", "ret");
sample!(
    asks_by_copies,
    "push rbx",
    "mov ebx, 202",
    "call rdi",
    "mov eax, ebx",
    "syscall",
    "pop rbx",
    "ret",
);
sample!(
    asks_beside_a_table,
    "lea rcx, [rip + 4f]",
    "movsxd rdx, dword ptr [rcx + rdi * 4]",
    "add rdx, rcx",
    "jmp rdx",
    "2: mov eax, 39",
    "syscall",
    "3: ret",
    "4: .long 2b - 4b, 3b - 4b",
);
sample!(
    asks_twice,
    "mov eax, 186",
    "syscall",
    "mov edi, eax",
    "mov eax, 1",
    "syscall",
    "ret",
);

#[test]
fn a_number_for_the_kernel_is_told() {
    assert_eq!(touches(asks::range()), [Touch::Kernel(Some(39))]);
    assert_eq!(touches(asks_for_zero::range()), [Touch::Kernel(Some(0))]);
    assert_eq!(touches(asks_by_copies::range()), [Touch::Kernel(Some(202))]);
    let beside = touches(asks_beside_a_table::range());
    assert!(beside.contains(&Touch::Kernel(Some(39))), "{beside:?}");
    assert!(!beside.contains(&Touch::Kernel(None)), "{beside:?}");
    assert_eq!(
        touches(asks_twice::range()),
        [Touch::Kernel(Some(186)), Touch::Kernel(Some(1))]
    );
}

sample!(asks_for_anything, "mov eax, edi", "syscall", "ret");
sample!(asks_again, "mov eax, 39", "syscall", "syscall", "ret");
sample!(
    asks_by_two_ways,
    "mov eax, 39",
    "test edi, edi",
    "je 2f",
    "mov eax, 186",
    "2: syscall",
    "ret",
);
sample!(
    asks_after_part_of_it,
    "mov eax, 39",
    "mov al, dil",
    "syscall",
    "ret",
);
sample!(
    asks_after_a_call,
    "mov eax, 39",
    "call rdi",
    "syscall",
    "ret",
);
sample!(
    asks_behind_a_table,
    "mov eax, 186",
    "lea rcx, [rip + 4f]",
    "movsxd rdx, dword ptr [rcx + rdi * 4]",
    "add rdx, rcx",
    "jmp rdx",
    "2: mov eax, 39",
    "3: syscall",
    "ret",
    "4: .long 2b - 4b, 3b - 4b",
);
sample!(asks_in_an_old_way, "mov eax, 20", "int 0x80", "ret");

#[test]
fn a_number_for_the_kernel_that_may_be_another_is_not_told() {
    let anything = [Touch::Kernel(None)];
    assert_eq!(touches(asks_for_anything::range()), anything);
    assert!(touches(asks_again::range()).contains(&anything[0]));
    assert_eq!(touches(asks_by_two_ways::range()), anything);
    assert_eq!(touches(asks_after_part_of_it::range()), anything);
    assert_eq!(touches(asks_after_a_call::range()), anything);
    let behind = touches(asks_behind_a_table::range());
    assert!(behind.contains(&anything[0]), "{behind:?}");
    assert_eq!(touches(asks_in_an_old_way::range()), anything);
}

sample!(
    given_to_the_kernel,
    "mov rsi, fs:[0]",
    "mov eax, 1",
    "syscall",
    "ret",
);
sample!(
    kept_over_the_kernel,
    "mov r9, fs:[0]",
    "mov r12, r9",
    "xor r9d, r9d",
    "mov eax, 24",
    "syscall",
    "mov eax, [r12 - 8]",
    "ret",
);

// The loop's register held the thread pointer before, and nothing leads to what is before the loop.
sample!(
    padded_loop,
    "push r15",
    "mov r15, fs:[0]",
    "mov eax, [r15 - 0x38]",
    "call rsi",
    "mov r15, rbx",
    "jmp 3f",
    ".byte 0x0f, 0x1f, 0x40, 0x00",
    "2: cmp r14, r15",
    "je 4f",
    "3: inc r14",
    "jmp 2b",
    "4: pop r15",
    "ret",
);

#[test]
fn padding_before_a_loop_is_no_way_into_it() {
    assert_eq!(touches(padded_loop::range()), [Touch::Variable(-0x38)]);
}

#[test]
fn a_thread_pointer_is_lost_to_the_kernel_but_kept_beside_it() {
    assert!(is_lost(given_to_the_kernel::range()));
    let touched = touches(kept_over_the_kernel::range());
    assert!(touched.contains(&Touch::Variable(-8)), "{touched:?}");
}

sample!(rounds, "ldmxcsr [rdi]", "ret");
sample!(rounds_by_avx, "vldmxcsr [rdi]", "ret");
sample!(rounds_as_of_old, "fldcw [rdi]", "ret");
sample!(restores_all, "xrstor [rdi]", "ret");
sample!(gives_itself_rights, "wrpkru", "ret");
sample!(looks_only, "stmxcsr [rdi]", "fnstcw [rdi]", "rdpkru", "ret");

#[test]
fn loading_a_control_register_touches_and_reading_it_does_not() {
    assert!(is_lost(rounds::range()));
    assert!(is_lost(rounds_by_avx::range()));
    assert!(is_lost(rounds_as_of_old::range()));
    assert!(is_lost(restores_all::range()));
    assert!(is_lost(gives_itself_rights::range()));
    assert_eq!(touches(looks_only::range()), []);
}

sample!(
    branches,
    "call 3f",
    "jmp 3f",
    "je 3f",
    "2: jne 2b",
    "ret",
    "3:"
);
sample!(garbage, ".byte 0x06", "ret");
sample!(falls, "xor eax, eax");

#[test]
fn branches_that_leave_are_edges_and_others_are_not() {
    let range = branches::range();
    let found = facts(range.clone()).code;
    let end = range.end;
    assert_eq!(
        found,
        [(end, How::Call), (end, How::Jump), (end, How::Jump)]
    );
    assert!(is_lost(garbage::range()));
}

sample!(pads, "nop", "nop dword ptr [rax]");
sample!(halts, "xor eax, eax", "hlt");

#[test]
fn a_function_that_does_not_end_goes_on_behind_itself() {
    for range in [falls::range(), pads::range()] {
        assert_eq!(facts(range.clone()).code, [(range.end, How::Jump)]);
    }
    assert_eq!(facts(halts::range()).code, []);
    assert_eq!(facts(garbage::range()).code, []);
}

// The number holds `mov eax, fs:[rdi]; ret`.
sample!(
    branches_forward_into_an_instruction,
    "test edi, edi",
    "jne 2f + 1",
    "2: mov eax, 0xc3078b64",
    "ret",
);
sample!(
    branches_back_into_an_instruction,
    "2: mov eax, 0xc3078b64",
    "test edi, edi",
    "jne 2b + 1",
    "ret",
);
sample!(
    jumps_far_into_an_instruction,
    "2: mov eax, 0xc3078b64",
    "test edi, edi",
    ".byte 0xe9",
    ".long 2b + 1 - 3f",
    "3: ret",
);
sample!(
    calls_into_an_instruction,
    "2: mov eax, 0xc3078b64",
    "call 2b + 1",
    "ret",
);
// Its second byte begins `inc eax; ret`.
sample!(jumps_into_itself, ".byte 0xeb, 0xff, 0xc0, 0xc3, 1", "ret");
sample!(
    loops_into_an_instruction,
    "2: mov eax, 0xc3078b64",
    "loop 2b + 1",
    "ret",
);
sample!(
    branches_to_instructions,
    "2: mov eax, 0xc3078b64",
    "test edi, edi",
    "jne 2b",
    "je 4f",
    "3: nop dword ptr [rax]",
    "call 3b",
    "loop 3b",
    "4: ret",
);

#[test]
fn a_branch_into_the_middle_of_an_instruction_makes_a_function_unknown() {
    assert!(is_lost(branches_forward_into_an_instruction::range()));
    assert!(is_lost(branches_back_into_an_instruction::range()));
    assert!(is_lost(jumps_far_into_an_instruction::range()));
    assert!(is_lost(calls_into_an_instruction::range()));
    assert!(is_lost(jumps_into_itself::range()));
    assert!(is_lost(loops_into_an_instruction::range()));
    assert_eq!(touches(branches_to_instructions::range()), []);
}

/// The reach that `moves` reports for `rcx` behind the first instruction.
fn reach(range: Range<usize>) -> Reach {
    let mut memory = Memory::default();
    // SAFETY: code of this program.
    unsafe { memory.add(range.clone(), Kind::Text, true) };
    let bytes = memory.bytes(range.clone()).unwrap_or_default();
    let decoder = Decoder::with_ip(64, bytes, range.start as u64, DecoderOptions::NONE);
    let code: Vec<Motion> = decoder.into_iter().map(|i| Motion::of(&i)).collect();
    let fate = Fate::of(bit(Register::RCX), code[1..].iter().copied());
    let mut moves = Moves::read(code.into_iter());
    let holders = moves.holders(bit(Register::RCX), &fate);
    moves.reach(holders)
}

sample!(
    handed_over,
    "lea rcx, [rdi]",
    "call rsi",
    "mov eax, [rcx + rax]",
    "ret"
);
sample!(
    looked_up,
    "lea rcx, [rdi]",
    "movzx eax, al",
    "mov rax, [rcx + rax*8]",
    "ret"
);
sample!(
    from_the_end,
    "lea rcx, [rdi]",
    "mov rax, -24",
    "2: call [rcx + rax]",
    "add rax, 8",
    "jne 2b",
    "ret",
);
sample!(
    counted_up,
    "lea rcx, [rdi]",
    "2: add rcx, 8",
    "mov rax, [rcx]",
    "jne 2b",
    "ret",
);
sample!(
    copied_and_counted_down,
    "lea rcx, [rdi]",
    "mov rbx, rcx",
    "2: call [rbx - 16]",
    "add rbx, -16",
    "jne 2b",
    "ret",
);

// A vtable for each element of a list, whose length was in the vtable's register before.
sample!(
    handed_over_in_a_loop,
    "lea rcx, [rip]",
    "mov r15, rcx",
    "mov rbx, rdx",
    "2: mov rdx, r15",
    "call rbp",
    "add rbx, -4",
    "jne 2b",
    "ret",
);

#[test]
fn a_loop_over_a_table_may_begin_at_its_end_or_before_it() {
    let plain = Reach::default();
    assert_eq!(reach(handed_over::range()), plain);
    assert_eq!(reach(looked_up::range()), plain);
    assert_eq!(reach(handed_over_in_a_loop::range()), plain);
    assert!(reach(from_the_end::range()).before > 0);
    assert_eq!(reach(from_the_end::range()).after, 0);
    assert_eq!(
        reach(counted_up::range()),
        Reach {
            before: 0,
            after: 8
        }
    );
    assert_eq!(
        reach(copied_and_counted_down::range()),
        Reach {
            before: 16,
            after: 0
        }
    );
}

sample!(
    chosen_and_counted_down,
    "lea rcx, [rdi]",
    "lea rbx, [rsi]",
    "cmovne rbx, rcx",
    "sub rbx, 8",
    "call [rbx]",
    "ret",
);
sample!(
    exchanged_and_counted_down,
    "lea rcx, [rdi]",
    "xchg rbx, rcx",
    "sub rbx, 8",
    "call [rbx]",
    "ret",
);
sample!(
    exchanged_the_other_way,
    "lea rcx, [rdi]",
    "xchg rcx, rbx",
    "sub rbx, 8",
    "call [rbx]",
    "ret",
);
sample!(
    shifted_and_counted_down,
    "lea rcx, [rdi]",
    "lea rbx, [rcx - 8]",
    "2: call [rbx]",
    "sub rbx, 24",
    "jne 2b",
    "ret",
);
sample!(
    added_to_a_negative_number,
    "lea rcx, [rdi]",
    "mov rbx, -24",
    "add rbx, rcx",
    "call [rbx]",
    "ret",
);
sample!(
    pushed_and_counted_down,
    "lea rcx, [rdi]",
    "push rcx",
    "call rsi",
    "pop rbx",
    "sub rbx, 8",
    "call [rbx]",
    "ret",
);
sample!(
    put_away_and_counted_down,
    "lea rcx, [rdi]",
    "mov [rsp + 16], rcx",
    "call rsi",
    "mov rbx, [rsp + 16]",
    "sub rbx, 8",
    "call [rbx]",
    "ret",
);
sample!(
    put_away_by_the_frame,
    "lea rcx, [rdi]",
    "mov [rbp - 16], rcx",
    "call rsi",
    "mov rbx, [rbp - 16]",
    "mov r12, rbx",
    "sub r12, 8",
    "call [r12]",
    "ret",
);
sample!(
    copied_and_then_put_away,
    "lea rcx, [rdi]",
    "mov rdx, rcx",
    "mov [rsp + 16], rcx",
    "call rsi",
    "mov rbx, [rsp + 16]",
    "sub rbx, 8",
    "call [rbx]",
    "ret",
);
sample!(
    put_away_beside_a_counter,
    "lea rcx, [rdi]",
    "mov [rsp + 16], rcx",
    "call rsi",
    "mov rax, [rsp + 24]",
    "sub rax, 8",
    "mov rdi, [rsp + 16]",
    "call rax",
    "ret",
);
sample!(
    saved_beside_a_counter,
    "lea rcx, [rdi]",
    "push rbx",
    "push rcx",
    "call rsi",
    "sub rbx, 8",
    "pop rcx",
    "pop rbx",
    "ret",
);

#[test]
fn a_table_is_followed_into_other_registers_and_over_the_stack() {
    let before = |before| Reach { before, after: 0 };
    assert_eq!(reach(chosen_and_counted_down::range()), before(8));
    assert_eq!(reach(exchanged_and_counted_down::range()), before(8));
    assert_eq!(reach(exchanged_the_other_way::range()), before(8));
    assert_eq!(reach(shifted_and_counted_down::range()), before(24));
    assert!(reach(added_to_a_negative_number::range()).before > 0);
    assert_eq!(reach(pushed_and_counted_down::range()), before(8));
    assert_eq!(reach(put_away_and_counted_down::range()), before(8));
    assert_eq!(reach(put_away_by_the_frame::range()), before(8));
    assert_eq!(reach(copied_and_then_put_away::range()), before(8));
    assert_eq!(reach(put_away_beside_a_counter::range()), before(0));
    assert_eq!(reach(saved_beside_a_counter::range()), before(0));
}

/// Decodes one instruction and returns what it does to addresses.
fn motion(bytes: &[u8]) -> Motion {
    Motion::of(&Decoder::new(64, bytes, DecoderOptions::NONE).decode())
}

#[test]
fn a_move_on_any_condition_is_a_copy_and_hands_on_negative_numbers() {
    let (rcx, rbx) = (bit(Register::RCX), bit(Register::RBX));
    for condition in 0..16 {
        let moved = motion(&[0x48, 0x0F, 0x40 + condition, 0xD9]); // cmovcc rbx, rcx
        assert_eq!((moved.copy_to, moved.copy_from), (rbx, rcx));
        assert_eq!((moved.into, moved.sources), (rbx, rcx));
        let fetched = motion(&[0x48, 0x0F, 0x40 + condition, 0x1C, 0x24]); // cmovcc rbx, [rsp]
        assert!(fetched.into == rbx && fetched.from_stack);
    }
}

sample!(
    from_the_end_by_a_choice,
    "lea rcx, [rdi]",
    "mov rdx, -24",
    "cmovge rax, rdx",
    "call [rcx + rax]",
    "ret",
);
sample!(
    from_the_end_by_half_a_number,
    "lea rcx, [rdi]",
    "cdqe",
    "call [rcx + rax]",
    "ret",
);
sample!(
    from_the_end_by_a_sign,
    "lea rcx, [rdi]",
    "cqo",
    "call [rcx + rdx*8]",
    "ret",
);
sample!(
    from_the_end_by_a_carry,
    "lea rcx, [rdi]",
    "adc rax, -8",
    "call [rcx + rax]",
    "ret",
);
sample!(
    from_the_end_by_an_exchange,
    "lea rcx, [rdi]",
    "mov rdx, -24",
    "xchg rax, rdx",
    "call [rcx + rax]",
    "ret",
);

#[test]
fn a_negative_index_is_found_however_it_was_made() {
    assert!(reach(from_the_end_by_a_choice::range()).before > 0);
    assert!(reach(from_the_end_by_half_a_number::range()).before > 0);
    assert!(reach(from_the_end_by_a_sign::range()).before > 0);
    assert!(reach(from_the_end_by_a_carry::range()).before > 0);
    assert!(reach(from_the_end_by_an_exchange::range()).before > 0);
}

sample!(
    distances_by_a_copy,
    "lea rcx, [rip + 4f]",
    "mov rbx, rcx",
    "call rsi",
    "movsxd rax, dword ptr [rbx + rdi*4]",
    "add rax, rbx",
    "call rax",
    "ret",
    "4: .long 0, 0",
);
sample!(
    distances_by_a_copy_behind_a_branch,
    "lea rcx, [rip + 4f]",
    "jne 2f",
    "mov rbx, rcx",
    "2: movsxd rax, dword ptr [rbx + rdi*4]",
    "add rax, rbx",
    "call rax",
    "ret",
    "4: .long 0, 0",
);
sample!(
    no_distances,
    "lea rcx, [rip + 4f]",
    "mov rbx, rdx",
    "movsxd rax, dword ptr [rbx + rdi*4]",
    "call rax",
    "ret",
    "4: .long 0, 0",
);

/// Whether a constant at the function's end is found to be a table of distances.
fn has_distances(range: Range<usize>) -> bool {
    let code = range.start..range.end - 8;
    let mut memory = Memory::default();
    // SAFETY: code of this program.
    unsafe { memory.add(range.clone(), Kind::Text, true) };
    memory.rename(code.end..range.end, Kind::Constant);
    let found = facts_in(memory, code.clone()).constants;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].address, code.end);
    found[0].distances
}

#[test]
fn a_table_of_distances_is_known_by_copies_of_its_address() {
    assert!(has_distances(distances_by_a_copy::range()));
    assert!(has_distances(distances_by_a_copy_behind_a_branch::range()));
    assert!(!has_distances(no_distances::range()));
}
