//! Programs that are hard for a runtime with preemption, and must give right results.
//!
//! A *program* is a small set of fibers of one kind: they compute forever, hold locks, allocate,
//! call C, sleep in the kernel, panic. It runs on two workers with a quantum of one millisecond
//! while a *heartbeat* fiber wakes every few milliseconds beside it, and compares its results with
//! those of an undisturbed plain thread. There are four ways to fail: a wrong result (a
//! *complaint*), a hang (the *watchdog* ends the process), a crash, and a heartbeat that starves.
//!
//! ```text
//! cargo run -p indent-hostile -- --list
//! cargo run -p indent-hostile -- mutex --seconds 5 --quantum 0.2
//! cargo run -p indent-hostile --release -- all --long
//! cargo run -p indent-hostile --release -- all --regions
//! cargo run -p indent-hostile --release -- regions --seconds 600 --quantum 0.2
//! ```
//!
//! The *group* `regions` is the programs that run inside `preemptible` regions and are about them:
//! each in a process of its own, one after the other, and the time is divided among them. With
//! `--regions` all other programs run those parts in regions that allow it (`region.rs`).
//!
//! | exit code | means |
//! |---|---|
//! | 0 | all is right, or the program cannot run in this build and prints `SKIPPED` |
//! | 1 | complaints, on standard error |
//! | 2 | the command line is wrong |
//! | 3 | it hung; the visible state of fibers and threads is on standard error |
//!
//! `programs` has all of them, a few in a file by theme, each with its purpose. Output during a run
//! bypasses the standard streams' locks (`say.rs`), because programs hold those.

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
