#![expect(
    unsafe_code,
    reason = "raises the limit on descriptors by a system call"
)]
//! A million messages: many connections at once, with a fiber for each on both sides.
//!
//! Server and client are two processes. Every message is answered, byte by byte, and no descriptor
//! is left open.
//!
//! The default is a thousand connections with twenty messages each. With `INDENT_MANY=1` there are
//! ten thousand connections with a hundred messages, or as many as there are descriptors for. Each
//! I/O driver runs the same test.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::io::pipe;
use indent::net::{TcpListener, TcpStream};
use indent::park;
use indent::runtime::{Builder, Runtime};
use indent::{task, time};

mod common;

const MESSAGE: usize = 64;
const WORKERS: usize = 2;
/// Most connections without an answered first message while further connections are made.
///
/// Connections that the server has not accepted yet must fit into its queue.
const UNGREETED: usize = 64;
/// Descriptors in addition to those of the connections.
const SPARE: u64 = 200;
/// Variable that names the I/O driver.
const DRIVER: &str = "INDENT_IO";
const CONNECTIONS: &str = "INDENT_MANY_CONNECTIONS";
const MESSAGES: &str = "INDENT_MANY_MESSAGES";
const PORT: &str = "INDENT_MANY_PORT";

/// Raises the limit on descriptors as far as possible, and returns it.
fn raise_descriptors() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes to `limit`.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(got, 0, "a process may ask for its limits");
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads from `limit`.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(set, 0, "a process may raise a soft limit to the hard one");
    limit.rlim_cur
}

/// Returns the number of connections, and of messages on each of them.
fn size() -> (usize, usize) {
    let (wanted, messages) = match std::env::var_os("INDENT_MANY") {
        Some(_) => (10_000, 100),
        None => (1_000, 20),
    };
    let room = raise_descriptors().saturating_sub(SPARE) as usize;
    if room < wanted {
        println!("{room} connections instead of {wanted}: there are no descriptors for more");
    }
    (wanted.min(room), messages)
}

/// Returns the `number`th message of a connection.
fn message(connection: usize, number: usize) -> [u8; MESSAGE] {
    let seed = connection
        .wrapping_mul(1_000_003)
        .wrapping_add(number * 7919);
    std::array::from_fn(|i| (seed >> (8 * (i % 4))) as u8 ^ i as u8)
}

/// Counts the open descriptors of this process, without the one that lists them.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("a list of descriptors")
        .count()
        - 1
}

/// Returns the files that the open descriptors refer to, for error messages.
fn open_files() -> Vec<std::path::PathBuf> {
    let list = std::fs::read_dir("/proc/self/fd").expect("a list of descriptors");
    let links = list.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.collect()
}

fn start() -> Runtime {
    let built = Builder::new().workers(WORKERS).build();
    built.unwrap_or_else(|error| panic!("no runtime: {error}"))
}

fn child(test: &str, driver: &str) -> Command {
    let me = std::env::current_exe().expect("the path of this test binary");
    let mut command = Command::new(me);
    command
        .arg(format!("child::{test}"))
        .args(common::CHILD)
        .env(DRIVER, driver)
        .stdin(Stdio::null());
    command
}

/// Returns true if a runtime can use this I/O driver here; prints the reason if not.
fn has(driver: &str) -> bool {
    let starts = |driver| {
        let output = child("a_runtime_starts", driver).output();
        output.expect("a child process of this test binary")
    };
    if starts("no such driver").status.success() {
        common::skip(&format!("{DRIVER} is no setting: there is one driver only"));
        return false;
    }
    let output = starts(driver);
    let works = output.status.success();
    if !works {
        common::skip(&format!("no {driver} here: {}", common::text(&output)));
    }
    works
}

/// Returns the next line of a child that has this prefix, without the prefix.
fn said(from: &mut impl BufRead, begin: &str) -> String {
    let mut lines = from.lines().map(|line| line.expect("text"));
    let found = lines.find_map(|line| line.split_once(begin).map(|(_, rest)| rest.to_owned()));
    found.unwrap_or_else(|| panic!("the server ended without saying {begin}"))
}

fn finish(role: &str, mut process: Child, rest: &mut impl Read) {
    let mut text = String::new();
    rest.read_to_string(&mut text).expect("text");
    let status = process.wait().expect("a child");
    println!("{role}: {text}");
    assert!(
        status.success() && text.contains("1 passed"),
        "the {role} failed: {text}"
    );
}

/// Runs both processes and checks their output.
fn all_are_answered(driver: &str) {
    let (connections, messages) = size();
    let with_size = |mut command: Command| {
        command
            .env(CONNECTIONS, connections.to_string())
            .env(MESSAGES, messages.to_string())
            .stdout(Stdio::piped());
        command
    };
    common::within(600, || {
        let mut server = with_size(child("server", driver)).spawn().expect("a child");
        let mut from_server = BufReader::new(server.stdout.take().expect("a pipe"));
        let port = said(&mut from_server, "port=");
        let started = Instant::now();
        let mut client = with_size(child("client", driver))
            .env(PORT, port)
            .spawn()
            .expect("a child");
        let mut from_client = client.stdout.take().expect("a pipe");
        finish("client", client, &mut from_client);
        finish("server", server, &mut from_server);
        println!(
            "{driver}: {} messages on {connections} connections, all answered, in {:.2?}",
            connections * messages,
            started.elapsed()
        );
    });
}

#[test]
fn a_million_messages_are_answered_with_epoll() {
    all_are_answered("epoll");
}

#[test]
fn a_million_messages_are_answered_with_uring() {
    if has("uring") {
        all_are_answered("uring");
    }
}

/// Echoes until the other side closes; returns the number of bytes.
fn echo(mut stream: TcpStream) -> usize {
    let (mut buffer, mut all) = ([0; 256], 0);
    loop {
        let got = stream.read(&mut buffer).expect("a client that ends well");
        if got == 0 {
            return all;
        }
        stream
            .write_all(&buffer[..got])
            .expect("a client that reads");
        all += got;
    }
}

/// Accepts this many connections, each on a fiber, and returns when all are closed.
fn serve(rt: &Runtime, listener: &Arc<TcpListener>, connections: usize) -> usize {
    let listener = listener.clone();
    let accepted = move || {
        let accept = |_| listener.accept().expect("a connection").0;
        let fibers: Vec<_> = (0..connections)
            .map(accept)
            .map(|stream| task::spawn(move || echo(stream)))
            .collect();
        fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
    };
    let bytes = rt.block_on(accepted);
    rt.wait_idle();
    assert_eq!(rt.metrics().fibers_alive, 0);
    bytes
}

/// State that the client's fibers share.
#[derive(Default)]
struct Stage {
    /// Connections whose first message has come back.
    greeted: AtomicUsize,
    /// All connections have been made.
    complete: AtomicBool,
}

/// Runs the client's side of one connection.
fn talk(mut stream: TcpStream, index: usize, messages: usize, stage: &Stage) {
    for number in 0..messages {
        let (question, mut answer) = (message(index, number), [0; MESSAGE]);
        stream.write_all(&question).expect("a server that reads");
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, question, "message {number} of connection {index}");
        if number == 0 {
            stage.greeted.fetch_add(1, SeqCst);
            while !stage.complete.load(SeqCst) {
                park::park();
            }
        }
    }
}

/// Makes all connections, and then lets them exchange messages.
fn ask(rt: &Runtime, port: u16, connections: usize, messages: usize) {
    let whole = move || {
        let stage = Arc::new(Stage::default());
        let mut fibers = VecDeque::new();
        for index in 0..connections {
            while index - stage.greeted.load(SeqCst) >= UNGREETED {
                time::sleep(Duration::from_millis(1));
            }
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("a server");
            let stage = stage.clone();
            fibers.push_back(task::spawn(move || talk(stream, index, messages, &stage)));
        }
        stage.complete.store(true, SeqCst);
        fibers.iter().for_each(|fiber| fiber.unparker().unpark());
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    };
    rt.block_on(whole);
    rt.wait_idle();
    assert_eq!(rt.metrics().fibers_alive, 0);
}

mod child {
    //! Test bodies that run each in a process of its own, started by the tests above.

    use super::*;

    /// Connections of the first round, and messages on each.
    const FIRST: (usize, usize) = (32, 2);

    fn number(variable: &str) -> usize {
        let text = std::env::var(variable).expect("set by the test that starts this process");
        text.parse().expect("a number")
    }

    fn assert_none_left(before: usize) {
        if descriptors() > before {
            println!("open at first: {:?}", open_files());
        }
        common::wait_for("none is left", || descriptors() <= before);
        let after = descriptors();
        println!("descriptors before {before}, after {after}");
    }

    /// Starts a runtime for a first round, in which each worker waits once.
    ///
    /// The eventfds that wake sleeping workers are never closed; one is made when a worker first
    /// waits.
    fn first() -> Runtime {
        common::wait_for_the_survey(); // which reads files
        let rt = start();
        let wait = || {
            let (mut reader, _writer) = pipe().expect("a pipe");
            drop(time::timeout(Duration::from_millis(1), || {
                reader.read(&mut [0])
            }));
        };
        rt.block_on(|| {
            let fibers = (0..WORKERS).map(|i| task::Builder::new().worker(i).spawn(wait));
            let fibers: Vec<_> = fibers.collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
        rt
    }

    #[test]
    #[ignore = "a child of the tests above"]
    fn a_runtime_starts() {
        start().block_on(|| ());
    }

    #[test]
    #[ignore = "a child of the tests above"]
    fn server() {
        raise_descriptors();
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").expect("a port"));
        println!("port={}", listener.local_addr().expect("bound").port());
        io::stdout().flush().expect("a pipe");
        let bytes = serve(&first(), &listener, FIRST.0);
        assert_eq!(bytes, FIRST.0 * FIRST.1 * MESSAGE);

        let before = descriptors();
        let rt = start();
        let bytes = serve(&rt, &listener, number(CONNECTIONS));
        assert_eq!(bytes, number(CONNECTIONS) * number(MESSAGES) * MESSAGE);
        drop(rt);
        assert_none_left(before);
    }

    #[test]
    #[ignore = "a child of the tests above"]
    fn client() {
        raise_descriptors();
        let port = u16::try_from(number(PORT)).expect("a port");
        ask(&first(), port, FIRST.0, FIRST.1);

        let before = descriptors();
        let (rt, started) = (start(), Instant::now());
        ask(&rt, port, number(CONNECTIONS), number(MESSAGES));
        println!("took {:.2?} with connecting", started.elapsed());
        drop(rt);
        assert_none_left(before);
    }
}
