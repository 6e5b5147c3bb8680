#![doc = include_str!("../README.md")]

mod blocking; // L5
pub mod chan; // L5
mod compute; // L5
mod driver; // L2
mod error; // L0
mod fiber; // L1
pub mod io; // L5
pub mod net; // L5
pub mod park; // L4
mod queue; // L2
pub mod runtime; // L6
mod sched; // L3
pub mod select; // L6
pub mod sync; // L5
mod sys; // L0
pub mod task; // L6
pub mod time; // L5
mod util; // L0

pub use error::{JoinError, NoRuntime, SpawnError, StartError};
pub use runtime::{Runtime, block_on};
pub use task::{JoinHandle, spawn};
