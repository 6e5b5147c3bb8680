#![expect(unsafe_code, reason = "puts a pipe behind standard output")]
//! The lock of standard output, which belongs to a thread and may be taken twice by it.
//!
//! Standard output becomes a pipe. A plain thread reads it and checks that every line is whole,
//! that each fiber's lines are in order, and that nothing comes between those that were printed
//! under one lock. All programs here share it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write, stdout};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use super::Program;
use crate::noise::{compute_for, stir};
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("println", "lines from everywhere", println).pure(),
    Program::new(
        "stdout-lock",
        "the lock held for 50 ms while siblings print",
        stdout_lock,
    )
    .pure(),
];

const FIBERS: usize = 6;
/// Number of lines printed under one lock.
const BLOCK: u64 = 5;

/// State of the reader: for each program and fiber the number of its next line.
struct Read {
    next: HashMap<(String, usize), u64>,
    /// Owner of the current block, and the number of its lines that are still to come.
    inside: Option<(String, u64)>,
    complaints: Vec<String>,
}

static READ: OnceLock<Mutex<Read>> = OnceLock::new();

fn read() -> std::sync::MutexGuard<'static, Read> {
    let read = READ.get_or_init(|| {
        let from = replace_output();
        thread::spawn(move || {
            BufReader::new(from).lines().for_each(|line| {
                read().line(&line.expect("text"));
            })
        });
        Mutex::new(Read {
            next: HashMap::new(),
            inside: None,
            complaints: Vec::new(),
        })
    });
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

fn replace_output() -> File {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    let status = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(status, 0, "a pipe");
    // SAFETY: both are from `pipe2`, and nothing else owns them.
    let [from, to] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: both descriptors are open, and nothing here prints for users.
    let copied = unsafe { libc::dup2(to.as_raw_fd(), 1) };
    assert_eq!(copied, 1, "a copy");
    from
}

/// Returns a line: program, fiber, number, lines of the same block to come, and a checksum.
fn line(program: &str, fiber: usize, number: u64, to_come: u64) -> String {
    let check = stir(number ^ fiber as u64);
    format!("{program} {fiber} {number} {to_come} {check:016x}")
}

impl Read {
    fn line(&mut self, text: &str) {
        let Some((program, fiber, number, to_come)) = parse(text) else {
            return self.complain(format!("not a line: {text:?}"));
        };
        if text != line(&program, fiber, number, to_come) {
            self.complain(format!("a broken line: {text:?}"));
        }
        let who = format!("{program} {fiber}");
        if let Some((owner, left)) = self.inside.take()
            && (owner != who || left != to_come + 1)
        {
            self.complain(format!(
                "{text:?} in a block of {owner}, {left} lines to come"
            ));
        }
        self.inside = (to_come > 0).then_some((who, to_come));
        let next = self.next.entry((program, fiber)).or_default();
        let expected = std::mem::replace(next, number + 1);
        if expected != number {
            self.complain(format!("line {expected} is missing before {text:?}"));
        }
    }

    fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }
}

fn parse(text: &str) -> Option<(String, usize, u64, u64)> {
    let mut words = text.split(' ');
    let program = words.next()?.to_owned();
    let fiber = words.next()?.parse().ok()?;
    Some((
        program,
        fiber,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    ))
}

/// Waits until all lines of a program have been read, and passes on what was wrong.
fn finish(stage: &'static Stage, printed: &[(usize, u64)]) {
    stdout().flush().expect("a reader");
    let all_read = || {
        let read = read();
        printed.iter().all(|(fiber, number)| {
            let next = read.next.get(&(stage.name.to_owned(), *fiber));
            next.copied().unwrap_or(0) >= *number
        })
    };
    while !all_read() {
        thread::sleep(Duration::from_millis(1));
    }
    let complaints = std::mem::take(&mut read().complaints);
    complaints.into_iter().for_each(|what| stage.complain(what));
}

/// Runs fibers that print and return their number of lines.
fn print(stage: &'static Stage, body: fn(&'static Stage, usize) -> u64) {
    drop(read());
    let printed: &'static Mutex<Vec<(usize, u64)>> = Box::leak(Box::default());
    stage.crew(FIBERS, move |i| {
        let lines = body(stage, i);
        printed.lock().expect("no panic inside").push((i, lines));
    });
    let printed = std::mem::take(&mut *printed.lock().expect("no panic inside"));
    finish(stage, &printed);
}

fn println(stage: &'static Stage) {
    print(stage, |stage, i| {
        let mut number = 0;
        while number == 0 || !stage.over() {
            println!("{}", line(stage.name, i, number, 0));
            number += 1;
            if number % 32 == 0 {
                pure(|| compute_for(Duration::from_millis(1)));
            }
            stage.round();
        }
        number
    });
}

fn stdout_lock(stage: &'static Stage) {
    print(stage, |stage, i| {
        let mut number = 0;
        while number == 0 || !stage.over() {
            if i > 1 {
                println!("{}", line(stage.name, i, number, 0));
                number += 1;
                compute_for(Duration::from_micros(100));
            } else {
                let mut out = stdout().lock();
                for to_come in (0..BLOCK).rev() {
                    writeln!(out, "{}", line(stage.name, i, number, to_come)).expect("a reader");
                    number += 1;
                    compute_for(Duration::from_millis(50) / BLOCK as u32);
                }
                drop(out);
                pure(|| compute_for(Duration::from_millis(5)));
            }
            stage.round();
        }
        number
    });
}
