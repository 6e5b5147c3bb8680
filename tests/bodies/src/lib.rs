//! Crates' own examples on fibers, with a switch at every step.
//!
//! Each *body* is a small function written like an example of a crate, or one that tries to keep
//! something of its thread over a switch. It calls `step` between its steps, which yields, parks or
//! sleeps. Many fibers run the same body at once, several times, with a quantum of 0.2 ms; then
//! plain threads do. A body checks itself, and its result must be the same on fibers and on
//! threads.
//!
//! ```text
//! cargo run -p indent-bodies -- --list
//! cargo run -p indent-bodies -- regex            # one body
//! cargo run -p indent-bodies -- examples         # each in a process of its own
//! cargo run -p indent-bodies -- attacks
//! cargo run -p indent-bodies -- together         # all examples mixed in one process
//! ```
//!
//! In a program with all of them every call through a pointer may lead to one that keeps an address
//! of a thread-local, so all fibers are bound. So `examples` runs each a second time, with
//! `--trust-pointers`. The program `one` has a single example, which `INDENT_BODY` names when it is
//! compiled.
//!
//! The output has one line for each body, with tabs: its name, how often it ran on fibers and
//! threads, how many of these runs were wrong, how many switches of fibers there were, how many of
//! them were parks (the others yields), at how many parks the fiber was bound, and after how many
//! switches it was on another thread; then the reason for being bound, or what was wrong. With
//! `--trust` every fiber may move: this shows which bodies rely on being bound. With
//! `--trust-pointers` one body does not bind all others.

pub mod attacks;
pub mod body;
pub mod examples;
pub mod run;
pub mod step;
