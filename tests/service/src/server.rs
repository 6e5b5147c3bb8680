//! The service: a fiber that accepts, and a fiber for each connection.
//!
//! A plain thread answers commands, one per line: `count` prints some metrics, `binding` prints
//! which fibers keep threads. The process ends with its standard input.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use indent::net::{TcpListener, TcpStream};
use indent::runtime::{Builder, Runtime};
use tracing::{info, info_span};

use crate::handler::{self, Tables};
use crate::http::{self, Head};

pub(crate) fn serve(log: &Path) -> io::Result<()> {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Mutex::new(File::create(log)?))
        .init();
    let rt = Builder::new().build().map_err(io::Error::other)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    drop(rt.spawn(move || accept(&listener)));

    for command in io::stdin().lines() {
        match command?.as_str() {
            "count" => print_count(&rt)?,
            "binding" => print_binding(&rt),
            other => eprintln!("service: no command {other:?}"),
        }
    }
    std::process::exit(0); // the connections are still open
}

fn accept(listener: &TcpListener) {
    let tables = Arc::new(Tables::default());
    for stream in listener.incoming() {
        let tables = tables.clone();
        let serve = move |stream| {
            if let Err(error) = connection(&stream, &tables) {
                eprintln!("service: a connection ended: {error}");
            }
        };
        match stream {
            Ok(stream) => drop(indent::spawn(move || serve(stream))),
            Err(error) => eprintln!("service: accept: {error}"),
        }
    }
}

/// Answers one request after the other until the client closes the connection.
fn connection(stream: &TcpStream, tables: &Tables) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    while let Some(head) = http::read_head(&mut input)? {
        answer(&head, &mut input, stream, tables)?;
    }
    Ok(())
}

/// Answers a request; everything after the head happens inside the span of the request.
fn answer(
    head: &Head,
    mut input: impl Read,
    output: &TcpStream,
    tables: &Tables,
) -> io::Result<()> {
    let id = head.id;
    let span = info_span!("request", id);
    let _entered = span.enter();
    let mut body = vec![0; head.length];
    input.read_exact(&mut body)?;
    info!("read for {id}");
    let answer = handler::count_words(id, &body, tables)?;
    http::write_answer(output, &answer)?;
    info!("answered {id}");
    Ok(())
}

/// Prints a line of names and numbers.
fn print_count(rt: &Runtime) -> io::Result<()> {
    let metrics = rt.metrics();
    let parks: u64 = metrics
        .workers
        .iter()
        .map(|worker| worker.parks_total)
        .sum();
    println!(
        "workers {} fibers {} parks {parks} carriers {} occupied {} spare {} frozen {} threads {}",
        metrics.workers_in_service,
        metrics.fibers_alive,
        metrics.carriers,
        metrics.carriers_bound,
        metrics.carriers_spare,
        metrics.carriers_frozen,
        fs::read_dir("/proc/self/task")?.count(),
    );
    Ok(())
}

/// Prints the parks of bound fibers, then the whole report and an empty line.
fn print_binding(rt: &Runtime) {
    let report = rt.binding();
    let judged: u64 = report.rows.iter().map(|row| row.parks).sum();
    println!(
        "bound {} unjudged {}\n{report}\n",
        judged + report.others,
        report.unjudged
    );
}
