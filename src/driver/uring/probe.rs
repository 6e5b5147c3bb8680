//! Whether io_uring can be used here, and what it can do.
//!
//! The kernel is asked which operations there are; they are not guessed from versions. The ring
//! that asks is as large as those that are used, since the memory of rings may be limited.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use io_uring::{IoUring, Probe, opcode};

use super::{COMPLETIONS, ENTRIES};

/// The operations that a ring has to support.
const NEEDED: [(u8, &str); 10] = [
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::Send::CODE, "SEND"),
    (opcode::RecvMsg::CODE, "RECVMSG"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::Timeout::CODE, "TIMEOUT"),
];

/// Transfers can poll before they try. Set by the first [`refusal`].
static POLLS_FIRST: AtomicBool = AtomicBool::new(false);

pub(super) fn polls_first() -> bool {
    POLLS_FIRST.load(Relaxed)
}

/// Returns why io_uring cannot be used here, if so.
pub(crate) fn refusal() -> Option<io::Error> {
    let check = || {
        let ring = make(ENTRIES, COMPLETIONS)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if let Some((_, name)) = NEEDED.iter().find(|(code, _)| !probe.is_supported(*code)) {
            let what = format!("this kernel's io_uring has no {name}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        // There is no flag for it. It came with this operation.
        POLLS_FIRST.store(probe.is_supported(opcode::Socket::CODE), Relaxed);
        if !ring.params().is_feature_nodrop() {
            let what = "this kernel's io_uring loses completions when there are many";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(())
    };
    check().err()
}

/// Makes a ring of these sizes, or of the largest there can be.
pub(super) fn make(entries: u32, completions: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(completions).dontfork();
    // Where the kernel supports it, an invalid entry does not hold up those behind it.
    match builder.clone().setup_submit_all().build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(entries),
        made => made,
    }
}
