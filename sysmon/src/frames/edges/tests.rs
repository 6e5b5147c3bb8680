//! Real instructions, assembled into this program and read back.

#![expect(unsafe_code, reason = "samples in assembly")]

use super::*;
use crate::frames::image::memory::Memory;

/// Defines a function in assembly, with where it begins and ends.
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

/// What is found in a function, in an image that has nothing else.
fn facts(range: Range<usize>) -> Facts {
    let mut memory = Memory::default();
    // SAFETY: code of this program.
    unsafe { memory.add(range.clone(), Kind::Text, true) };
    let image = Image {
        memory,
        range: range.clone(),
        ..Image::default()
    };
    let function = Function {
        range,
        cold: false,
        handlers: None,
    };
    let mut reader = Reader::default();
    reader.read(&image, &function);
    reader.facts
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
    assert!(is_lost(returned::range()));
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
    assert!(facts(falls::range()).code.is_empty());
}

/// What `moves` says of `rcx` behind the first instruction.
fn reach(range: Range<usize>) -> Reach {
    let mut memory = Memory::default();
    // SAFETY: code of this program.
    unsafe { memory.add(range.clone(), Kind::Text, true) };
    let bytes = memory.bytes(range.clone()).unwrap_or_default();
    let code: Vec<Instruction> =
        Decoder::with_ip(64, bytes, range.start as u64, DecoderOptions::NONE)
            .into_iter()
            .collect();
    match moves::fate(Register::RCX, &code[1..]) {
        Fate::Left => Reach::default(),
        Fate::Open => moves::reach(&Moves::read(&code), Register::RCX),
    }
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

// A vtable for each element of a list, whose length was in the vtable's register once.
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
