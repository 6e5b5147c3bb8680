//! Waiting for descriptors: pipes, and [`Source`] for whatever else the kernel can watch.
//!
//! Everything here, and in [`net`](crate::net), first tries the call without waiting and waits only if it
//! must; then it blocks the calling fiber and nobody else, and on a plain thread the thread. Calls that
//! succeed at once are charged to the fiber's budget.
//!
//! A fiber that was asked to end, or is past a [time limit](crate::time::timeout), unwinds where it would
//! have to wait, or when its budget is used up, before it has transferred anything: what was transferred
//! is always returned, and what came meanwhile is read by whoever reads next. No byte is lost, and none is sent
//! twice.
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
