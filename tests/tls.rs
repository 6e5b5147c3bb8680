//! Machine code of thread-locals: no address of a thread-local outlives a switch (S8).
//!
//! A fiber that switches out may come back on another thread. The compiler does not know that: it
//! may compute the address of a thread-local once and use it again after the switch, where it
//! belongs to a thread the fiber has left. The source guards against that
//! (`sched/workers/context.rs`); only the machine code shows whether the guard held. So this test
//! builds a small program with optimization (and, when the tests themselves are optimized, with
//! link-time optimization of everything), disassembles it, and checks:
//!
//! 1. `CARRIER` is read in one function, `sched::workers::context::carrier`, which exists as a
//!    function of its own, loads the pointer once, and is called from many places. No other
//!    function reads it; functions that write it, or take its address in order to write it, contain
//!    no switch.
//! 2. After every switch out of a fiber the first call goes to that function: the fiber asks again
//!    for its carrier.
//! 3. Functions that contain a switch take no address of a thread-local at all, except for
//!    `PARKER`, which only plain threads use, and those never switch. Accesses relative to the
//!    thread register itself (std's count of panics) always belong to the present thread and are
//!    harmless.
//!
//! The test recognizes a switch out by its necessary instruction: it loads the stack pointer from
//! memory.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

mod common;

/// Name of the switch of a fiber, where it is a function of its own.
const SUSPEND: &str = "corosensei::coroutine::Yielder";

const ACCESSOR: &str = "indent::sched::workers::context::carrier";
/// Name of the loop at the root of every stack.
///
/// It takes the next fiber, which asks for its carrier.
const ROOT: &str = "indent::fiber::switch::root";
/// How a coroutine ends; the root loop never does.
const END: &str = "::coroutine_func";

const MANIFEST: &str = r#"
[package]
name = "tls-probe"
version = "0.0.0"
edition = "2024"

[dependencies]
indent-runtime = { path = "@" }

[profile.release]
debug = 1

[profile.fat]
inherits = "release"
lto = "fat"
codegen-units = 1

[workspace]
"#;

const PROGRAM: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn park_loop() {
    for _ in 0..2 {
        indent::park::park();
        indent::task::yield_now();
    }
}

fn main() {
    let fiber = indent::spawn(|| {
        indent::task::checkpoint();
        park_loop();
        indent::runtime::handoff();
        indent::spawn(|| 7).join().unwrap()
    });
    let mut fiber = Some(fiber);
    let value = loop {
        let waiting = fiber.take().unwrap();
        waiting.unparker().unpark();
        match waiting.join_timeout(std::time::Duration::from_millis(1)) {
            Ok(value) => break value,
            Err(back) => fiber = Some(back),
        }
    };
    println!("probe: {}", value.unwrap());
}
"#;

/// Builds the program and returns its path.
fn build(profile: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-probe-{profile}"));
    std::fs::create_dir_all(here.join("src")).expect("a directory");
    let manifest = MANIFEST.replace('@', env!("CARGO_MANIFEST_DIR"));
    // Uses the versions of the workspace, so that the build needs no network.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    drop(std::fs::copy(lock, here.join("Cargo.lock")));
    std::fs::write(here.join("Cargo.toml"), manifest).expect("a manifest");
    std::fs::write(here.join("src/main.rs"), PROGRAM).expect("a program");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "build",
            "--offline",
            "--profile",
            profile,
            "--manifest-path",
        ])
        .arg(here.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(here.join("target"))
        // Sanitizers and similar flags change the very code under test.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", common::text(&output));
    here.join("target").join(profile).join("tls-probe")
}

fn objdump(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new("objdump")
        .args(arguments)
        .arg(program)
        .output();
    let output = output.expect("objdump");
    assert!(output.status.success(), "{}", common::text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

struct Function {
    name: String,
    /// Address and text of each instruction.
    code: Vec<(u64, String)>,
}

/// Returns the targets that the loader will write: calls between object files go through them.
fn relocations(program: &Path) -> BTreeMap<u64, u64> {
    let text = objdump(program, &["-R"]);
    let relative = |line: &str| -> Option<(u64, u64)> {
        let (place, target) = line.split_once(" R_X86_64_RELATIVE")?;
        let target = target.trim().strip_prefix("*ABS*+0x")?;
        let number = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
        Some((number(place)?, number(target)?))
    };
    text.lines().filter_map(relative).collect()
}

/// Returns all functions by address.
fn disassemble(program: &Path) -> BTreeMap<u64, Function> {
    let indirect = relocations(program);
    let text = objdump(program, &["-d", "-C", "--no-show-raw-insn"]);
    let mut functions = BTreeMap::new();
    let mut at = 0;
    for line in text.lines() {
        if let Some((address, name)) = line.split_once(" <").filter(|_| line.ends_with(">:")) {
            at = u64::from_str_radix(address, 16).expect("an address");
            let name = name.trim_end_matches(">:").to_owned();
            functions.insert(
                at,
                Function {
                    name,
                    code: Vec::new(),
                },
            );
        } else if let Some((address, code)) = line.trim_start().split_once(":\t")
            && let Ok(address) = u64::from_str_radix(address, 16)
            && let Some(function) = functions.get_mut(&at)
        {
            function
                .code
                .push((address, directly(code.trim(), &indirect)));
        }
    }
    functions
}

/// Rewrites a call or jump through a place the loader fills in, as if it were direct.
fn directly(code: &str, indirect: &BTreeMap<u64, u64>) -> String {
    let place = code
        .split_once("# ")
        .and_then(|(_, place)| place.split(' ').next());
    let place = place.and_then(|place| u64::from_str_radix(place, 16).ok());
    let target = place.and_then(|place| indirect.get(&place));
    match (code.split_once(' '), target) {
        (Some((verb @ ("call" | "jmp"), _)), Some(target)) => format!("{verb} {target:x}"),
        _ => code.to_owned(),
    }
}

/// Returns the offset of a thread-local from the thread register, and its length.
fn offset_of(program: &Path, local: &str) -> (i64, i64) {
    let headers = objdump(program, &["-p"]);
    let mut lines = headers
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("TLS"));
    let (first, second) = (
        lines.next().expect("a TLS segment"),
        lines.next().expect("its size"),
    );
    let number = |text: &str, after: &str| -> i64 {
        let mut words = text.split_whitespace().skip_while(|word| *word != after);
        let word = words.nth(1).expect(after);
        i64::from_str_radix(word.trim_start_matches("0x"), 16).expect("a number")
    };
    let align = first.rsplit("2**").next().expect("an alignment");
    let align = 1i64 << align.trim().parse::<u32>().expect("an alignment");
    let size = (number(second, "memsz") + align - 1) / align * align;
    let symbols = objdump(program, &["-t", "-C"]);
    let wanted = format!("indent::sched::workers::context::{local}::");
    let line = symbols
        .lines()
        .find(|line| line.contains(&wanted) && line.contains(".tbss"));
    let line = line.unwrap_or_else(|| panic!("no thread-local {local}"));
    let mut words = line.split_whitespace();
    let value = words.next().expect("a value");
    let value = i64::from_str_radix(value, 16).expect("a number");
    let length = words.nth(2).expect("a length");
    (
        value - size,
        i64::from_str_radix(length, 16).expect("a number"),
    )
}

impl Function {
    /// Returns the instructions that leave a fiber's stack.
    fn switches(&self) -> impl Iterator<Item = usize> + '_ {
        let leaves = |code: &str| code.starts_with("mov ") && code.ends_with("),%rsp");
        (0..self.code.len()).filter(move |&i| leaves(&self.code[i].1))
    }

    fn has_switch(&self) -> bool {
        self.switches().next().is_some()
    }

    /// Returns the uses of thread-locals: index of the instruction, offset from the thread
    /// register.
    fn locals(&self) -> Vec<(usize, i64)> {
        let mut found = Vec::new();
        for (i, (_, code)) in self.code.iter().enumerate() {
            let Some((_, operand)) = code.split_once("%fs:") else {
                continue;
            };
            let operand = operand.split(',').next().unwrap_or(operand);
            let offset = u64::from_str_radix(operand.trim_start_matches("0x"), 16);
            match offset.map(|offset| offset as i64) {
                // The thread register itself: an offset is added to it soon after.
                Ok(0) => found.extend(self.materialized(i)),
                Ok(offset) => found.push((i, offset)),
                Err(_) => panic!("{}: an access this test cannot read: {code}", self.name),
            }
        }
        found
    }

    /// Returns the offsets added to the thread register that instruction `i` loads.
    fn materialized(&self, i: usize) -> Vec<(usize, i64)> {
        let mut registers: BTreeSet<String> = BTreeSet::new();
        registers.extend(self.code[i].1.rsplit(',').next().map(str::to_owned));
        let mut found = Vec::new();
        for (j, (_, code)) in self.code.iter().enumerate().skip(i + 1).take(8) {
            // A copy of the register counts as the register.
            if let Some((from, to)) = code.strip_prefix("mov ").and_then(|c| c.split_once(','))
                && registers.contains(from.trim())
                && to.starts_with('%')
            {
                registers.insert(to.to_owned());
            }
            let Some(open) = code.find('(') else { continue };
            let (before, after) = (&code[..open], &code[open + 1..]);
            let base = after.split([',', ')']).next().unwrap_or_default();
            let text = before.rsplit([' ', ',', '*']).next().unwrap_or_default();
            let negative = text.starts_with('-');
            let digits = text.trim_start_matches('-').trim_start_matches("0x");
            if let (true, Ok(n)) = (registers.contains(base), i64::from_str_radix(digits, 16)) {
                found.push((j, if negative { -n } else { n }));
            }
        }
        found
    }

    /// Returns true if instruction `i` takes an address, or loads the thread register to make one.
    fn takes_address(&self, i: usize) -> bool {
        self.code[i].1.starts_with("lea ")
    }

    /// Returns true if instruction `i` writes to memory and does nothing else with it.
    fn writes(&self, i: usize) -> bool {
        let code = &self.code[i].1;
        let target = code.rsplit(',').next().unwrap_or_default();
        let memory = code.ends_with(')') || target.contains("%fs:");
        code.starts_with("mov") && memory && !target.starts_with("%r")
    }

    /// Returns the targets of direct calls and jumps.
    fn targets(&self) -> impl Iterator<Item = u64> + '_ {
        self.code.iter().filter_map(|(_, code)| target(code))
    }

    /// Returns the instructions that call one of these functions.
    fn calls_of(&self, functions: &[u64]) -> Vec<usize> {
        let calls = |code: &str| target(code).is_some_and(|to| functions.contains(&to));
        let code = self.code.iter().enumerate();
        code.filter(|(_, (_, code))| calls(code))
            .map(|(i, _)| i)
            .collect()
    }

    /// Returns the target of the first call from instruction `i` on.
    fn first_call(&self, i: usize) -> Option<u64> {
        let calls = |code: &str| code.starts_with("call");
        let (_, call) = self.code[i..].iter().find(|(_, code)| calls(code))?;
        target(call)
    }

    fn listing(&self, around: usize) -> String {
        let (from, to) = (around.saturating_sub(8), (around + 16).min(self.code.len()));
        let lines = self.code[from..to].iter();
        lines
            .map(|(at, code)| format!("  {at:x}: {code}\n"))
            .collect()
    }
}

/// Returns the target of a direct call or jump.
fn target(code: &str) -> Option<u64> {
    let rest = code
        .strip_prefix("call ")
        .or_else(|| code.strip_prefix("jmp "))?;
    u64::from_str_radix(rest.trim().split(' ').next()?, 16).ok()
}

fn check(profile: &str) {
    if Command::new("objdump").arg("--version").output().is_err() {
        return common::skip("objdump is not installed");
    }
    let program = build(profile);
    let run = Command::new(&program).output().expect("the program");
    assert!(
        common::text(&run).contains("probe: 7"),
        "{}",
        common::text(&run)
    );

    let functions = disassemble(&program);
    let (carrier, carrier_length) = offset_of(&program, "CARRIER");
    let (parker, parker_length) = offset_of(&program, "PARKER");
    let is_carrier = |offset: i64| (carrier..carrier + carrier_length).contains(&offset);
    let is_parker = |offset: i64| (parker..parker + parker_length).contains(&offset);
    println!("CARRIER at {carrier:#x}, PARKER at {parker:#x}");

    // 1. There is one reader.
    let accessors: Vec<_> = functions
        .iter()
        .filter(|(_, f)| f.name == ACCESSOR)
        .collect();
    assert_eq!(accessors.len(), 1, "{ACCESSOR} is a function of its own");
    let (&accessor, function) = accessors[0];
    let reads = function.locals();
    assert_eq!(reads.len(), 1, "{}", function.listing(0));
    assert!(is_carrier(reads[0].1), "{}", function.listing(0));
    assert!(
        !function.takes_address(reads[0].0),
        "{}",
        function.listing(0)
    );
    let callers: Vec<_> = functions
        .values()
        .filter(|f| f.targets().any(|target| target == accessor))
        .map(|f| f.name.as_str())
        .collect();
    println!("the accessor is called by {callers:#?}");
    assert!(callers.len() >= 5, "inlined somewhere? {callers:?}");

    let mut takers = Vec::new();
    for (&at, function) in functions.iter().filter(|(at, _)| **at != accessor) {
        for (i, _) in function
            .locals()
            .into_iter()
            .filter(|&(_, o)| is_carrier(o))
        {
            let (name, listing) = (&function.name, function.listing(i));
            assert!(
                !function.has_switch(),
                "{name} touches CARRIER and switches:\n{listing}"
            );
            if function.takes_address(i) {
                takers.push(at); // std's inner function of a thread-local: check its callers below
            } else {
                assert!(function.writes(i), "{name} reads CARRIER:\n{listing}");
                println!("{name} writes CARRIER");
            }
        }
    }
    for function in functions.values() {
        if function.targets().any(|target| takers.contains(&target)) {
            println!("{} takes the address of CARRIER", function.name);
            assert!(
                !function.has_switch(),
                "{} does so and switches",
                function.name
            );
            assert!(
                function.name.contains("carrier"),
                "{} has no need to",
                function.name
            );
        }
    }

    // 2. After a switch, the carrier is asked for again.
    let mut switches = 0;
    for function in functions.values() {
        for i in function.switches() {
            let (name, listing) = (&function.name, function.listing(i));
            println!("{name} switches:\n{listing}");
            if name == ROOT || name.contains(END) || name.starts_with(SUSPEND) {
                continue;
            }
            switches += 1;
            let asks = function.first_call(i) == Some(accessor);
            assert!(
                asks,
                "{name} does not ask who it is after a switch:\n{listing}"
            );
        }
    }
    // Where the switch is a function of its own, its callers ask as soon as it returns.
    let suspends = functions
        .iter()
        .filter(|(_, f)| f.name.starts_with(SUSPEND));
    let suspends: Vec<u64> = suspends.map(|(&at, _)| at).collect();
    for function in functions.values().filter(|f| f.name != ROOT) {
        for i in function.calls_of(&suspends) {
            switches += 1;
            let (name, listing) = (&function.name, function.listing(i));
            let asks = function.first_call(i + 1) == Some(accessor);
            assert!(asks, "{name} does not ask after a switch:\n{listing}");
        }
    }
    assert!(switches >= 2, "parks and yields switch; found {switches}");
    // The root's next fiber begins by asking.
    let first = functions
        .values()
        .find(|f| f.name == "indent::sched::workers::run::fiber_main");
    let first = first.expect("the body of all fibers is a function, passed by pointer");
    assert_eq!(first.first_call(0), Some(accessor), "{}", first.listing(0));

    // 3. No address of a thread-local in a function that switches.
    for function in functions.values().filter(|f| f.has_switch()) {
        for (i, (_, code)) in function.code.iter().enumerate() {
            assert!(!code.contains("__tls_get_addr"), "{}", function.listing(i));
            if code.contains("%fs:0x0,") {
                let used = function.materialized(i);
                let harmless = !used.is_empty() && used.iter().all(|&(_, o)| is_parker(o));
                let (name, listing) = (&function.name, function.listing(i));
                assert!(
                    harmless,
                    "{name} takes an address of a thread-local:\n{listing}"
                );
            }
        }
    }
}

#[test]
fn optimized_code_asks_for_its_carrier_after_every_switch() {
    check("release");
}

#[test]
fn code_optimized_as_a_whole_asks_for_its_carrier_after_every_switch() {
    if cfg!(debug_assertions) {
        return; // slow to build; the optimized run of the tests does it
    }
    check("fat");
}
