//! Tests with real instructions, assembled into this program and followed.

use super::*;
use crate::frames::edges::tests::{alone, sample};
use crate::frames::image::memory::{Kind, Memory};

/// Follows a function that receives some addresses, if calls answer like this.
fn followed(range: Range<usize>, given: Arguments, answer: Answer) -> (Escape, Vec<Arguments>) {
    let mut memory = Memory::default();
    // SAFETY: code of this program.
    unsafe { memory.add(range.clone(), Kind::Text, true) };
    let (image, function) = alone(memory, range);
    let mut asked = Vec::new();
    let mut ask = |_, arguments| {
        asked.push(arguments);
        Answer {
            loses: answer.loses && arguments != 0,
            ..answer
        }
    };
    let escape = Follower::default().follow(&image, &function, given, &mut ask);
    (escape, asked)
}

/// What happens to the function's own addresses, if calls do nothing with them.
fn own(range: Range<usize>) -> Fate {
    followed(range, 0, Answer::default()).0.own
}

sample!(value, "inc dword ptr fs:[-0x38]", "ret");
sample!(
    brief,
    "mov rax, fs:0",
    "mov ecx, [rax - 0x38]",
    "inc ecx",
    "mov [rax - 0x38], ecx",
    "xor eax, eax",
    "ret",
);
sample!(
    kept_in_register,
    "push rbx",
    "mov rbx, fs:0",
    "call 2f",
    "mov ecx, [rbx - 0x38]",
    "xor eax, eax",
    "pop rbx",
    "2: ret",
);
sample!(
    kept_in_frame,
    "sub rsp, 24",
    "mov rax, fs:0",
    "mov [rsp + 8], rax",
    "call 2f",
    "mov rax, [rsp + 8]",
    "mov ecx, [rax - 0x38]",
    "xor eax, eax",
    "add rsp, 24",
    "2: ret",
);
sample!(
    pushed,
    "mov rax, fs:0",
    "push rax",
    "call 2f",
    "pop rcx",
    "xor eax, eax",
    "2: ret"
);

#[test]
fn a_value_and_a_brief_use_hold_nothing() {
    assert_eq!(own(value::range()), Fate::default());
    let brief = own(brief::range());
    assert!(brief.any && !brief.held && brief.lost.is_none() && brief.returns == 0);
}

#[test]
fn an_address_that_is_there_during_a_call_is_held() {
    for range in [
        kept_in_register::range(),
        kept_in_frame::range(),
        pushed::range(),
    ] {
        let fate = own(range);
        assert!(
            fate.held && fate.lost.is_none() && fate.returns == 0,
            "{fate:?}"
        );
    }
}

sample!(handed_out, "mov rax, fs:0", "lea rax, [rax - 0x38]", "ret");
sample!(
    returned_by_a_jump,
    "mov rdi, fs:0",
    "add rdi, -0x38",
    "jmp indent_sample_handed_out",
);

#[test]
fn an_address_may_be_handed_out() {
    let fate = own(handed_out::range());
    assert!(
        fate.returns == 1 && fate.lost.is_none() && !fate.held,
        "{fate:?}"
    );
    let back = Answer {
        returns: 1,
        ..Answer::default()
    };
    let (escape, asked) = followed(returned_by_a_jump::range(), 0, back);
    assert_eq!(asked, [1], "the first argument");
    assert!(escape.own.returns == 1 && escape.own.held, "{escape:?}");
}

sample!(
    stored,
    "mov rax, fs:0",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret"
);
sample!(
    stored_in_a_local,
    "mov rax, fs:0",
    "mov fs:[-0x40], rax",
    "xor eax, eax",
    "ret",
);
sample!(
    stored_packed,
    "mov rax, fs:0",
    "mov [rsp - 13], eax",
    "shr rax, 32",
    "mov [rsp - 9], eax",
    "xor eax, eax",
    "ret",
);
sample!(
    in_a_vector,
    "mov rax, fs:0",
    "movq xmm0, rax",
    "xor eax, eax",
    "ret"
);
sample!(
    compared,
    "mov rax, fs:0",
    "cmp rax, [rdi]",
    "mov eax, 0",
    "ret"
);
sample!(
    frame_given,
    "sub rsp, 24",
    "mov rax, fs:0",
    "mov [rsp + 8], rax",
    "lea rdi, [rsp]",
    "call 2f",
    "xor eax, eax",
    "add rsp, 24",
    "2: ret",
);
sample!(
    through_own_pointer,
    "sub rsp, 40",
    "lea rcx, [rsp + 8]",
    "mov [rsp], rcx",
    "mov rax, fs:0",
    "mov [rsp + 8], rax",
    "mov rcx, [rsp]",
    "mov rax, [rcx]",
    "mov [rdi], rax",
    "xor eax, eax",
    "add rsp, 40",
    "ret",
);
sample!(
    to_the_kernel,
    "mov rdi, fs:0",
    "mov eax, 39",
    "syscall",
    "xor eax, eax",
    "ret"
);
sample!(
    copied_in_a_block,
    "mov rax, fs:0",
    "mov [rsp - 16], rax",
    "lea rsi, [rsp - 16]",
    "mov ecx, 1",
    "rep movsq",
    "xor eax, eax",
    "ret",
);

#[test]
fn an_address_is_lost_where_it_leaves_the_function_otherwise() {
    let samples = [
        ("stored", stored::range()),
        ("stored in a thread-local", stored_in_a_local::range()),
        ("stored in parts", stored_packed::range()),
        ("in a vector", in_a_vector::range()),
        ("compared", compared::range()),
        ("frame given", frame_given::range()),
        ("through its own pointer", through_own_pointer::range()),
        ("to the kernel", to_the_kernel::range()),
        ("copied in a block", copied_in_a_block::range()),
    ];
    for (name, range) in samples {
        assert!(own(range).lost.is_some(), "{name}");
    }
}

sample!(
    another_part_given,
    "sub rsp, 40",
    "mov rax, fs:0",
    "mov [rsp + 8], rax",
    "lea rdi, [rsp + 16]",
    "call 2f",
    "xor eax, eax",
    "add rsp, 40",
    "2: ret",
);
sample!(
    tested,
    "mov rax, fs:0",
    "test rax, rax",
    "mov eax, 0",
    "ret"
);
sample!(
    overwritten,
    "sub rsp, 24",
    "mov rax, fs:0",
    "mov [rsp], rax",
    "mov qword ptr [rsp], 0",
    "mov rdi, rsp",
    "xor eax, eax",
    "call 2f",
    "add rsp, 24",
    "2: ret",
);

#[test]
fn an_address_that_stays_in_the_frame_is_not_lost() {
    for range in [
        another_part_given::range(),
        tested::range(),
        overwritten::range(),
    ] {
        let fate = own(range);
        assert!(fate.lost.is_none(), "{fate:?}");
    }
}

sample!(
    passed_on,
    "sub rsp, 8",
    "mov rsi, fs:0",
    "call 2f",
    "xor eax, eax",
    "add rsp, 8",
    "2: ret"
);
sample!(
    through_a_pointer,
    "sub rsp, 8",
    "mov r9, fs:0",
    "call rbx",
    "xor eax, eax",
    "add rsp, 8",
    "ret"
);

#[test]
fn a_call_is_asked_what_it_does_with_what_it_is_given() {
    let loses = Answer {
        loses: true,
        ..Answer::default()
    };
    let (escape, asked) = followed(passed_on::range(), 0, Answer::default());
    assert_eq!(asked, [1 << 1]);
    assert!(escape.own.held && escape.own.lost.is_none());
    for range in [passed_on::range(), through_a_pointer::range()] {
        assert!(followed(range, 0, loses).0.own.lost.is_some());
    }
    let hands_out = Answer {
        hands_out: 1,
        ..Answer::default()
    };
    let (escape, _) = followed(kept_in_register::range(), 0, hands_out);
    assert!(escape.own.held, "{escape:?}");
}

sample!(keeps_argument, "mov [rsi], rdi", "xor eax, eax", "ret");
sample!(gives_back, "lea rax, [rdi + 8]", "ret");
sample!(
    from_the_stack,
    "mov rax, [rsp + 8]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret"
);

#[test]
fn what_a_function_is_given_is_told_from_its_own() {
    let with = |range, given| followed(range, given, Answer::default()).0;
    let kept = with(keeps_argument::range(), 1);
    assert!(kept.given.lost.is_some() && kept.own == Fate::default());
    let not = with(keeps_argument::range(), 1 << 1); // where it is put, not what
    assert!(not.given.lost.is_none());
    assert_eq!(with(gives_back::range(), 1).given.returns, 1);
    assert!(with(from_the_stack::range(), ON_STACK).given.lost.is_some());
    assert!(with(from_the_stack::range(), 0).given.lost.is_none());
}

sample!(
    around_a_loop,
    "xor ecx, ecx",
    "2:",
    "test rcx, rcx",
    "je 3f",
    "mov [rdi], rcx",
    "3:",
    "mov rcx, fs:0",
    "dec esi",
    "jne 2b",
    "xor eax, eax",
    "ret",
);

#[test]
fn what_comes_around_a_loop_is_seen() {
    assert!(own(around_a_loop::range()).lost.is_some());
}
