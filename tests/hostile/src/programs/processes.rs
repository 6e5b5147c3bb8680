#![expect(unsafe_code, reason = "code between fork and exec")]
//! Child processes: they do not inherit the carrier's signal settings, CPUs and priority.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::Program;
use crate::noise::compute_for;
use crate::region::pure;
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[Program::new(
    "command",
    "children and threads started in the middle see the signals and CPUs they should",
    command,
)
.pure()];

/// Lines of a `status` file about signals, and the bit of SIGURG in them.
const ABOUT_SIGNALS: [&str; 3] = ["SigBlk:", "SigIgn:", "SigCgt:"];
const URGENT: u64 = 1 << (libc::SIGURG - 1);

fn line<'a>(status: &'a str, name: &str) -> &'a str {
    let found = status.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or("none").trim()
}

fn own_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
    line(&status, "Cpus_allowed_list:").to_owned()
}

fn command(stage: &'static Stage) {
    let cpus: &'static str = own_cpus().leak();
    stage.crew(4, move |i| {
        for turn in 0.. {
            if turn > 0 && stage.over() {
                return;
            }
            // Computes first, so that a fiber may just have been interrupted.
            pure(|| compute_for(Duration::from_micros(500 * (turn % 6))));
            match (i as u64 + turn) % 3 {
                0 => stage.same(
                    "a thread's CPUs",
                    thread::spawn(own_cpus).join().ok(),
                    Some(cpus.to_owned()),
                ),
                1 => child(stage, cpus, false),
                _ => child(stage, cpus, true),
            }
        }
    });
}

/// Starts a child that shows its own status, by `fork` if something must be done before it.
fn child(stage: &Stage, cpus: &str, prepared: bool) {
    let mut command = Command::new("cat");
    command.arg("/proc/self/status");
    if prepared {
        let prepare = || {
            // SAFETY: the call touches no memory.
            unsafe { libc::umask(0o022) };
            Ok(())
        };
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(prepare) };
    }
    let output = command.output().expect("cat");
    let status = String::from_utf8_lossy(&output.stdout);
    for name in ABOUT_SIGNALS {
        let bits = u64::from_str_radix(line(&status, name), 16);
        let found = bits.map(|bits| bits & URGENT);
        stage.same(&format!("SIGURG in a child's {name}"), found, Ok(0));
    }
    stage.same("a child's CPUs", line(&status, "Cpus_allowed_list:"), cpus);
}
