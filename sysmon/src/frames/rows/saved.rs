//! Where a frame has saved its caller's registers.

use gimli::{Register, RegisterRule, X86_64};

use super::{Tables, Unwinder};
use crate::frames::objects::Object;

/// Registers that functions preserve for their callers.
const PRESERVED: [Register; 6] = [
    X86_64::RBX,
    X86_64::RBP,
    X86_64::R12,
    X86_64::R13,
    X86_64::R14,
    X86_64::R15,
];

impl Unwinder {
    /// Whether a frame that stands at an instruction of an object that is mapped meanwhile has saved
    /// a register so many bytes below its CFA. True if that cannot be told.
    pub(crate) fn has_saved(&mut self, object: &Object, pc: usize, below: usize) -> bool {
        let mut is_saved = || {
            let tables = Tables::of(object)?;
            let fde = tables.function(pc)?;
            let (frames, bases) = (&tables.frames, &tables.bases);
            let row = fde.unwind_info_for_address(frames, bases, &mut self.context, pc as u64);
            let row = row.ok()?;
            let slot = RegisterRule::Offset(-i64::try_from(below).ok()?);
            let is_slot = |register| row.register(register) == Some(slot.clone());
            Some(PRESERVED.into_iter().any(is_slot))
        };
        is_saved().unwrap_or(true)
    }
}
