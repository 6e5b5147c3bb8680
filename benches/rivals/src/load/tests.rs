use super::*;

use std::net::TcpListener;
use std::thread;

/// A server that spoils every answer from the `spoils`th byte on, or goes silent there.
fn server(spoils: Option<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream, spoils));
        }
    });
    port
}

fn echo(mut stream: TcpStream, spoils: Option<usize>) {
    stream.set_nodelay(true).unwrap(); // or the second part waits until the first is acknowledged
    let (mut buffer, mut passed) = ([0; 7], 0); // parts, not whole messages
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        if spoils.is_some_and(|at| (passed..passed + got).contains(&at)) {
            buffer[0] ^= 1;
        }
        passed += got;
        if stream.write_all(&buffer[..got]).is_err() {
            return;
        }
    }
}

fn run(port: u16, line: &str) -> Summary {
    let words = line.split_whitespace().map(str::to_owned);
    let all = ["--port".to_owned(), port.to_string()]
        .into_iter()
        .chain(words);
    let options = Options::read(all).unwrap();
    Load::connect(options).unwrap().run().unwrap()
}

#[test]
fn every_message_of_a_closed_loop_is_answered() {
    let summary = run(server(None), "--conns 100 --messages 30 --size 65");
    assert_eq!((summary.requests, summary.errors), (3000, 0));
    assert_eq!(summary.unanswered, 0);
    assert!(summary.p50_us <= summary.p99_us && summary.p99_us <= summary.max_us);
}

#[test]
fn an_open_loop_asks_at_its_rate() {
    let summary = run(
        server(None),
        "--conns 8 --rate 500 --seconds 1 --warm-up 0.1",
    );
    assert!((490..=510).contains(&summary.requests), "{summary}");
    assert_eq!((summary.errors, summary.unanswered), (0, 0));
}

#[test]
fn large_messages_go_through() {
    let summary = run(server(None), "--conns 2 --messages 1 --size 4000000");
    assert_eq!((summary.requests, summary.errors), (2, 0), "{summary}");
}

#[test]
fn a_wrong_byte_is_an_error() {
    let summary = run(server(Some(100)), "--conns 2 --messages 3 --size 64");
    assert_eq!((summary.requests, summary.errors), (2, 2), "{summary}");
}

#[test]
fn a_server_that_takes_nobody_answers_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let summary = run(port, "--conns 4 --rate 100 --seconds 0.5 --warm-up 0");
    assert_eq!((summary.requests, summary.errors), (0, 0), "{summary}");
    assert!((48..=50).contains(&summary.unanswered), "{summary}");
    assert!(summary.p50_us >= 1e6, "{summary}");
    drop(listener);
}

#[test]
fn the_command_line_says_what_is_wrong() {
    let read = |line: &str| Options::read(line.split_whitespace().map(str::to_owned));
    assert!(read("--port 1 --seconds 2 --rate 3").is_ok());
    for wrong in [
        "",
        "--port 1",
        "--port 70000 --seconds 1",
        "--port 1 --seconds -1",
        "--port 1 --messages 1 --rate 1",
        "--port 1 --seconds 1 --idle 1",
        "--port 1 --seconds 1 --conns 0",
        "--port 1 --seconds 1 --what 1",
    ] {
        assert!(read(wrong).unwrap_err().contains("usage"), "{wrong}");
    }
}
