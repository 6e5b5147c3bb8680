//! Thread registers that calls neither preserve nor spoil: floating-point control and protection
//! keys.
//!
//! These are the rounding mode and the masks of both floating-point units, and the rights that
//! protection keys give.
//!
//! A function that changes one wants the change for the code that runs next on this thread, and
//! will restore the old value. So it is bound, like a function that changes a thread-local. Reading
//! these registers does not bind.
//!
//! The segment registers that thread-locals are found by count as well: loading one changes the
//! thread pointer.
//!
//! Rejected: an exception for code that restores the old value before the next call. No code needs
//! it: no function of std, of a compiler's support library or of the crates in `tests/verdicts`
//! loads one.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Description of what such an instruction touches.
pub(super) const REGISTERS: &str = "rounding mode, floating-point masks or protection keys";

/// Description of what an instruction that loads a segment register touches.
pub(super) const SEGMENTS: &str = "a segment register";

/// Whether an instruction loads such a register.
pub(super) fn loads(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Ldmxcsr
            | Mnemonic::Vldmxcsr
            | Mnemonic::Fldcw
            | Mnemonic::Fldenv
            | Mnemonic::Frstor
            | Mnemonic::Fxrstor
            | Mnemonic::Fxrstor64
            | Mnemonic::Xrstor
            | Mnemonic::Xrstor64
            | Mnemonic::Xrstors
            | Mnemonic::Xrstors64
            // These set the masks as well.
            | Mnemonic::Fninit
            | Mnemonic::Finit
            | Mnemonic::Fnsave
            | Mnemonic::Fsave
            | Mnemonic::Fnstenv
            | Mnemonic::Fstenv
            | Mnemonic::Wrpkru
    )
}

/// Whether an instruction loads `fs`, by which thread-locals are found, or its twin `gs`.
pub(super) fn loads_segment(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Lfs | Mnemonic::Lgs => true,
        Mnemonic::Mov | Mnemonic::Pop => {
            instruction.op0_kind() == OpKind::Register
                && matches!(instruction.op0_register(), Register::FS | Register::GS)
        }
        _ => false,
    }
}
