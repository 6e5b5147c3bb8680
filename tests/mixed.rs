//! The example `mixed` from outside: its service as a client sees it, and the demonstration's
//! output.
//!
//! Everything here is a real process and real sockets. `cargo test` builds examples; if only this
//! test was built, there may be none, and the tests report that.

#![expect(unsafe_code, reason = "sends a signal to a process")]

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{text, wait_for, within};

/// Returns the example's program, next to the folder of this test.
///
/// Prints the reason for skipping the test if there is none.
fn program() -> Option<PathBuf> {
    let me = std::env::current_exe().expect("the path of this test binary");
    let built = me.parent().and_then(|deps| deps.parent());
    let program = built.expect("a folder").join("examples/mixed");
    if !program.exists() {
        common::skip("examples/mixed is not built; `cargo build --examples` does");
        return None;
    }
    Some(program)
}

/// A running service, which ends when this is dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Option<Server> {
        let mut process = Command::new(program()?)
            .args(["serve", "--addr", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is a pipe");
        let read = BufReader::new(stdout).read_line(&mut line);
        read.expect("it says where it listens");
        let address = line.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("it said {line:?}"));
        Some(Server {
            address: address.to_owned(),
            process,
        })
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).expect("a connection");
        Client(BufReader::new(stream))
    }

    fn terminate(&self) {
        let process = self.process.id() as libc::pid_t;
        // SAFETY: a plain system call; the process is a child that has not been waited for, so the
        // number is its own.
        let result = unsafe { libc::kill(process, libc::SIGTERM) };
        assert_eq!(result, 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _known = self.process.wait();
    }
}

struct Client(BufReader<TcpStream>);

/// An answer: head and body.
#[derive(Debug)]
struct Answer {
    code: u16,
    headers: Vec<String>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&String| line.to_lowercase().starts_with(&format!("{name}: "));
        let line = self.headers.iter().find(named)?;
        Some(&line[name.len() + 2..])
    }
}

impl Client {
    fn send(&mut self, bytes: &str) {
        let stream = self.0.get_mut();
        stream.write_all(bytes.as_bytes()).expect("it is sent");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line of an answer");
        assert!(line.ends_with("\r\n"), "an answer ends in {line:?}");
        line.trim_end().to_owned()
    }

    fn head(&mut self) -> Answer {
        let status = self.line();
        let code = status.strip_prefix("HTTP/1.1 ").map(|rest| &rest[..3]);
        let code = code.unwrap_or_else(|| panic!("a status: {status:?}"));
        let lines = std::iter::from_fn(|| Some(self.line()).filter(|line| !line.is_empty()));
        Answer {
            code: code.parse().expect("a number"),
            headers: lines.collect(),
            body: String::new(),
        }
    }

    fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        let length = answer.header("content-length").expect("a length");
        let mut body = vec![0; length.parse().expect("a number")];
        self.0.read_exact(&mut body).expect("a body");
        answer.body = String::from_utf8(body).expect("text");
        answer
    }

    fn get(&mut self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"));
        self.answer()
    }

    /// Returns everything that still arrives until the service closes.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        match self.0.read_to_string(&mut rest) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
            _ => rest,
        }
    }
}

#[test]
fn a_connection_serves_one_request_after_the_other() {
    let Some(server) = Server::start(&["--crunch-ms", "5"]) else {
        return;
    };
    within(120, || {
        let mut client = server.connect();
        for _ in 0..3 {
            let answer = client.get("/ping");
            assert_eq!((answer.code, answer.body.as_str()), (200, "pong\n"));
            assert!(answer.header("date").unwrap().ends_with(" GMT"));
        }
        for _ in 0..2 {
            let number = client.get("/crunch").body;
            assert!(
                u64::from_str_radix(number.trim_end(), 16).is_ok(),
                "{number}"
            );
        }
        assert_eq!(client.get("/").code, 404);
        assert_eq!(client.get("http://here/ping?why=not").code, 200);
    });
}

#[test]
fn requests_sent_together_are_answered_in_their_order() {
    let Some(server) = Server::start(&["--crunch-ms", "5"]) else {
        return;
    };
    within(120, || {
        let mut client = server.connect();
        let paths = ["/crunch", "/ping", "/nowhere", "/ping"];
        let requests = paths.map(|path| format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"));
        client.send(&requests.concat());
        let codes = paths.map(|_| client.answer().code);
        assert_eq!(codes, [200, 200, 404, 200]);

        let head = "HEAD /ping HTTP/1.1\r\nHost: here\r\n\r\n";
        client.send(&format!("{head}{}", requests[1]));
        assert_eq!(client.head().header("content-length"), Some("5"));
        assert_eq!(client.answer().body, "pong\n"); // no body came in between
    });
}

#[test]
fn a_request_may_come_in_pieces() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    within(120, || {
        let mut client = server.connect();
        client.0.get_ref().set_nodelay(true).unwrap();
        for piece in ["GE", "T /ping HT", "TP/1.1\r\nHo", "st: here\r", "\n", "\r"] {
            client.send(piece);
            std::thread::sleep(Duration::from_millis(5));
        }
        client.send("\nGET /ping HTTP/1.1\r\n"); // with a part of the next request
        assert_eq!(client.answer().code, 200);
        client.send("Host: here\r\n\r\n");
        assert_eq!(client.answer().code, 200);
    });
}

#[test]
fn bodies_are_read_and_other_methods_refused() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    within(120, || {
        let mut client = server.connect();
        client.send("POST /ping HTTP/1.1\r\nHost: here\r\nContent-Length: 20\r\n\r\n0123456789");
        client.send("GET /ping!GET /ping HTTP/1.1\r\nHost: here\r\n\r\n");
        let answer = client.answer();
        assert_eq!(
            (answer.code, answer.header("allow")),
            (405, Some("GET, HEAD"))
        );
        assert_eq!(client.answer().code, 200);

        let expects = "Host: here\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
        client.send(&format!("GET /ping HTTP/1.1\r\n{expects}"));
        assert_eq!(client.head().code, 100);
        client.send("ok");
        assert_eq!(client.answer().code, 200);
    });
}

#[test]
fn a_connection_ends_when_the_client_wants_it_to() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    within(120, || {
        let last = ["HTTP/1.1\r\nHost: here\r\nConnection: close", "HTTP/1.0"];
        for rest in last {
            let mut client = server.connect();
            client.send(&format!("GET /ping {rest}\r\n\r\n"));
            let answer = client.answer();
            assert_eq!(
                (answer.code, answer.header("connection")),
                (200, Some("close"))
            );
            assert_eq!(client.rest(), "");
        }
        let mut client = server.connect();
        for _ in 0..2 {
            client.send("GET /ping HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
            assert_eq!(client.answer().header("connection"), Some("keep-alive"));
        }
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.rest(), "");
    });
}

#[test]
fn what_is_no_good_request_is_refused_and_the_connection_closed() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let long = "x".repeat(40_000);
    let many = "a: b\r\n".repeat(100);
    let cases = [
        ("nonsense\r\n\r\n", 400),
        ("GET /ping HTTP/1.1\r\n\r\n", 400),
        ("GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET /ping HTTP/3.0\r\nHost: here\r\n\r\n", 505),
        (
            "GET / HTTP/1.1\r\nHost: here\r\nContent-Length: -1\r\n\r\n",
            400,
        ),
        (
            "GET / HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        (
            "GET / HTTP/1.1\r\nHost: here\r\nContent-Length: 70000\r\n\r\n",
            413,
        ),
        (
            "GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n",
            501,
        ),
        (&format!("GET /{long} HTTP/1.1\r\nHost: here\r\n\r\n"), 431),
        (&format!("GET / HTTP/1.1\r\nHost: here\r\n{many}\r\n"), 431),
    ];
    within(120, || {
        for (request, code) in cases {
            let mut client = server.connect();
            client.send(request);
            let answer = client.answer();
            let seen = (answer.code, answer.header("connection"));
            assert_eq!(seen, (code, Some("close")), "to {request:.60?}");
            assert_eq!(client.rest(), "");
        }
    });
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let Some(server) = Server::start(&["--idle-s", "0.5"]) else {
        return;
    };
    within(120, || {
        let mut half = server.connect();
        half.send("GET /ping HTTP/1.1\r\nHost:");
        let mut used = server.connect();
        assert_eq!(used.get("/ping").code, 200);
        let unused = server.connect();
        assert_eq!(unused.rest(), "");
        assert_eq!(used.rest(), "");
        assert_eq!(half.answer().code, 408);
        assert_eq!(half.rest(), "");
    });
}

#[test]
fn a_service_asked_to_end_answers_what_was_asked_and_nothing_else() {
    let Some(mut server) = Server::start(&["--crunch-ms", "1500"]) else {
        return;
    };
    within(120, || {
        let mut idle = server.connect();
        assert_eq!(idle.get("/ping").code, 200);
        let request = |path| format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n");
        let mut half = server.connect();
        half.send(&(request("/ping") + "GET /ping HTTP/1.1\r\nHo"));
        assert_eq!(half.answer().code, 200); // so a part of the next request has been read
        let mut busy = server.connect();
        busy.send(&(request("/ping") + &request("/crunch")));
        assert_eq!(busy.answer().code, 200); // so now it computes

        server.terminate();
        let is_refused = || TcpStream::connect(&server.address).is_err();
        wait_for("nobody is let in any more", is_refused);
        assert_eq!(idle.rest(), "");
        half.send("st: here\r\n\r\n");
        for mut client in [busy, half] {
            let answer = client.answer();
            assert_eq!(
                (answer.code, answer.header("connection")),
                (200, Some("close"))
            );
            assert_eq!(client.rest(), "");
        }
        let status = server.process.wait().expect("it ends");
        assert_eq!(status.code(), Some(0));
    });
}

#[test]
fn an_idle_service_ends_at_once_when_asked() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    within(120, || {
        let _idle = server.connect();
        server.terminate();
        assert_eq!(server.process.wait().unwrap().code(), Some(0));
    });
}

/// Runs the demonstration, as short as possible.
fn demonstrate(arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program()?)
        .args(["--seconds", "0.2", "--rate", "200", "--crunch-ms", "5"])
        .args(arguments)
        .output()
        .expect("the example runs");
    assert!(output.status.success(), "{}", text(&output));
    Some(output)
}

#[test]
fn the_demonstration_prints_a_row_for_each_measurement() {
    let Some(output) = within(120, || demonstrate(&[])) else {
        return;
    };
    let table = String::from_utf8(output.stdout).expect("text");
    let is_row = |line: &&str| line.starts_with("on ") || line.starts_with("off ");
    let rows: Vec<&str> = table.lines().filter(is_row).collect();
    assert_eq!(rows.len(), 6, "{table}");
    assert!(rows.iter().all(|row| row.contains(" of ")), "{table}");
    assert!(table.contains("SCHED_FIFO") || table.contains("ordinary priority"));
}

#[test]
fn the_demonstration_writes_json_and_draws() {
    let file = std::env::temp_dir().join(format!("mixed-{}.svg", std::process::id()));
    let name = file.to_str().expect("a path in plain letters");
    let Some(output) = within(120, || demonstrate(&["--json", "--svg", name])) else {
        return;
    };
    let lines = String::from_utf8(output.stdout).expect("text");
    let rows: Vec<_> = lines.lines().map(members).collect();
    let value = |row: &[(String, String)], name: &str| {
        let member = row.iter().find(|(key, _)| key == name);
        member
            .unwrap_or_else(|| panic!("{name} in {row:?}"))
            .1
            .clone()
    };
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| value(row, "preempt") + " " + &value(row, "crunches_in_flight"))
        .collect();
    let expected = [
        "true 0", "true 8", "true 64", "false 0", "false 8", "false 64",
    ];
    assert_eq!(kinds, expected);
    for row in &rows {
        let number = |name| value(row, name).parse::<f64>().expect("a number");
        assert!(number("answered") <= number("pings"));
        assert!(number("p50_us") <= number("p99_us") && number("p99.9_us") <= number("max_us"));
    }
    assert_eq!(value(&rows[0], "answered"), value(&rows[0], "pings"));

    let drawing = std::fs::read_to_string(&file).expect("a drawing");
    std::fs::remove_file(&file).expect("it is ours");
    assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
    assert_eq!(drawing.matches("<polyline ").count(), 12);
}

/// Returns the members of a flat JSON object, values as written; panics for anything else.
fn members(line: &str) -> Vec<(String, String)> {
    let inside = line
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    let mut rest = inside.unwrap_or_else(|| panic!("no object: {line}"));
    let mut members = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest
            .strip_prefix('"')
            .and_then(|rest| rest.split_once("\":"))
            .unwrap_or_else(|| panic!("no name: {rest}"));
        let end = match after.strip_prefix('[') {
            Some(list) => list.find(']').expect("the end of a list") + 2,
            None => after.find(',').unwrap_or(after.len()),
        };
        let (value, after) = after.split_at(end);
        let is_plain = value.parse::<f64>().is_ok() || ["true", "false", "null"].contains(&value);
        assert!(is_plain || value.starts_with('['), "no value: {value}");
        members.push((name.to_owned(), value.to_owned()));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    members
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    let Some(program) = program() else { return };
    let cases: [(&[&str], &str); 5] = [
        (&["--second", "3"], "--second: there is no such argument"),
        (&["--seconds"], "--seconds needs a value"),
        (&["--rate", "many"], "--rate many: allowed is 1 to 100000"),
        (
            &["serve", "--preempt", "maybe"],
            "--preempt maybe: allowed is on or off",
        ),
        (&["serve", "--addr", "nowhere"], "cannot listen at nowhere"),
    ];
    for (arguments, message) in cases {
        let output = Command::new(&program).args(arguments).output().unwrap();
        assert!(!output.status.success());
        assert!(text(&output).contains(message), "{}", text(&output));
    }
    let help = Command::new(&program).arg("--help").output().unwrap();
    assert!(help.status.success() && text(&help).contains("--svg FILE"));
}
