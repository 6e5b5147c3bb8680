//! Programs that do what a runtime with preemption likes least, and must come out right.
//!
//! A *program* is a small set of fibers of one kind: they compute for ever, hold locks, allocate,
//! call C, sleep in the kernel, panic. It runs on two workers with a quantum of one millisecond
//! while a *heartbeat* fiber wakes every few milliseconds beside it, and compares what comes out
//! with what a plain thread gets that nobody disturbs. There are four ways to fail: a wrong result
//! (a *complaint*), a hang (the *watchdog* ends the process), a crash, and a heartbeat that starves.
//!
//! ```text
//! cargo run -p indent-hostile -- --list
//! cargo run -p indent-hostile -- mutex --seconds 5 --quantum 0.2
//! cargo run -p indent-hostile --release -- all --long
//! cargo run -p indent-hostile --release -- all --regions
//! cargo run -p indent-hostile --release -- regions --seconds 600 --quantum 0.2
//! ```
//!
//! The *group* `regions` is the programs that run inside `preemptible` regions and are about them: each
//! in a process of its own, one after the other, and the time is divided among them. With `--regions` all
//! other programs run those parts in regions that allow it (`region.rs`).
//!
//! | exit code | means |
//! |---|---|
//! | 0 | all is right, or the program cannot run in this build and says `SKIPPED` |
//! | 1 | complaints, on standard error |
//! | 2 | the command line is wrong |
//! | 3 | it hung; what could be seen of the fibers and threads is on standard error |
//!
//! `programs` has them all, a few in a file by theme, each with what it is after. What is said on the
//! way goes past the standard streams' locks (`say.rs`), because programs hold those.

mod heartbeat;
mod noise;
mod options;
mod programs;
mod region;
mod run;
mod say;
mod stage;
mod walk;
mod watchdog;

pub use run::main;
