//! Blocking I/O for fibers: pipes, and [`Source`] for any other descriptor the kernel can poll.
//!
//! Every operation here, and in [`net`](crate::net), first tries the call without waiting. If it
//! would have to wait, it suspends the calling fiber, not its thread; on a plain thread it blocks
//! the thread. Calls that succeed at once are charged to the fiber's
//! [budget](crate::runtime::Builder::coop_budget).
//!
//! # Cancellation
//!
//! A fiber that is asked to end, or is past a [time limit](crate::time::timeout), unwinds where it
//! would have to wait, or when its budget is used up. That is always before it has transferred
//! anything: what was transferred is returned, and data that arrives meanwhile stays for the next
//! read. No byte is lost, and none is sent twice.
//!
//! # Example
//!
//! ```
//! use std::io::{Read, Write};
//!
//! let (mut reader, mut writer) = indent::io::pipe()?;
//! let fiber = indent::spawn(move || {
//!     let mut text = String::new();
//!     reader.read_to_string(&mut text).map(|_| text)
//! });
//! writer.write_all(b"hello")?;
//! drop(writer); // the end of the text
//! assert_eq!(fiber.join().unwrap()?, "hello");
//! # Ok::<(), std::io::Error>(())
//! ```

pub(crate) mod backoff;
mod pipe;
pub(crate) mod registered;
pub(crate) mod registration;
mod source;

pub use pipe::{PipeReader, PipeWriter, pipe};
pub use source::Source;
pub(crate) use source::{Enlisted, ReadinessWait};
