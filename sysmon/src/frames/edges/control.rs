//! Registers of the thread that are neither preserved nor spoiled by calls: rounding mode and masks of
//! both floating-point units, and the rights that protection keys give.
//!
//! Who changes one wants it changed for what runs next on this thread, and will put the old value
//! back. So it is bound like one who changes a thread-local. Reading them binds nobody.
//!
//! The segment registers that thread-locals are found by count alike: loading one changes the
//! thread pointer.
//!
//! Rejected: letting off whoever puts the old value back before the next call. Nobody needs it: no
//! function of std, of a compiler's support library or of the crates in `tests/verdicts` loads one.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// What is touched, in words.
pub(super) const REGISTERS: &str = "rounding mode, floating-point masks or protection keys";

/// The same of segment registers.
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

/// Whether an instruction loads the segment that thread-locals are found by, or its twin.
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
