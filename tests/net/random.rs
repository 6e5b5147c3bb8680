//! Random operations on sockets and pipes, while fibers are preempted at any instruction.
//!
//! No byte and no datagram is lost or comes twice, however the operations interleave, whichever
//! time limits pass, and whenever a runtime ends. With each I/O driver.

use std::collections::VecDeque;
use std::hint;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indent::net::{Shutdown, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixStream};
use indent::runtime::Runtime;
use indent::{io::pipe, time};
use proptest::prelude::*;

use crate::common::{Random, within};
use crate::sockets::{self, fresh_path, pattern};

const DRIVERS: [&str; 2] = ["epoll", "uring"];
/// The quantum: after this time fibers that compute are preempted.
const QUANTUM: Duration = Duration::from_micros(200);

/// A fiber that computes until this is dropped.
struct Hog(Arc<AtomicBool>);

impl Drop for Hog {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A runtime with a fiber that computes.
fn pressed(driver: &str) -> (Runtime, Hog) {
    let builder = sockets::builder(driver).workers(2);
    let rt = builder.preempt_quantum(QUANTUM).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    drop(rt.spawn(move || {
        while !stops.load(SeqCst) {
            hint::black_box((0..1_000_u64).fold(1, |x, i| hint::black_box(x ^ i)));
        }
    }));
    (rt, Hog(stop))
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// One step of a test, whose outcome the model predicts.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(bool, usize),
    Read(bool, usize),
    Peek(bool, usize),
    Shutdown(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = any::<bool>();
    let step = prop_oneof![
        4 => (side, 1..5_000usize).prop_map(|(side, n)| Step::Write(side, n)),
        5 => (side, 1..5_000usize).prop_map(|(side, n)| Step::Read(side, n)),
        2 => (side, 1..5_000usize).prop_map(|(side, n)| Step::Peek(side, n)),
        1 => side.prop_map(Step::Shutdown),
    ];
    prop::collection::vec(step, 1..60)
}

/// The bytes on their way to one side.
#[derive(Default)]
struct Way {
    bytes: VecDeque<u8>,
    is_ended: bool,
}

/// A stream of either kind.
trait Stream: Read + Write + Send + 'static {
    fn peek(&self, _buffer: &mut [u8]) -> Option<io::Result<usize>> {
        None
    }
    fn end(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn peek(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        Some(TcpStream::peek(self, buffer))
    }
    fn end(&self) -> io::Result<()> {
        again_is_fine(self.shutdown(Shutdown::Write))
    }
}

impl Stream for UnixStream {
    fn end(&self) -> io::Result<()> {
        again_is_fine(self.shutdown(Shutdown::Write))
    }
}

/// A stream that was closed in both directions is not connected any more.
fn again_is_fine(end: io::Result<()>) -> io::Result<()> {
    end.or_else(|error| match error.kind() {
        ErrorKind::NotConnected => Ok(()),
        _ => Err(error),
    })
}

/// Takes the steps; a read returns what the model has, the end, or nothing until its limit passes.
fn follow<S: Stream>(mut streams: [S; 2], steps: &[Step]) {
    const MOST: usize = 60_000; // fits into the buffers of any socket
    let mut ways = [Way::default(), Way::default()];
    let mut next = 0u8;
    for step in steps {
        match *step {
            Step::Write(side, n) => {
                let (from, to) = (usize::from(side), usize::from(!side));
                if ways[to].is_ended {
                    let error = streams[from].write(&[0]).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                } else if ways[to].bytes.len() + n < MOST {
                    next = next.wrapping_add(1);
                    let bytes = pattern(n, next);
                    streams[from].write_all(&bytes).unwrap();
                    ways[to].bytes.extend(bytes);
                }
            }
            Step::Read(side, n) | Step::Peek(side, n) => {
                let side = usize::from(side);
                let (stream, way) = (&mut streams[side], &mut ways[side]);
                let mut buffer = vec![0; n];
                let is_peek = matches!(step, Step::Peek(..));
                let limit = match way.bytes.is_empty() && !way.is_ended {
                    true => Duration::from_micros(50),
                    false => Duration::from_secs(3600),
                };
                let result = time::timeout(limit, || match is_peek {
                    true => stream.peek(&mut buffer),
                    false => Some(stream.read(&mut buffer)),
                });
                let Ok(Some(result)) = result else {
                    assert!(is_peek || way.bytes.is_empty() && !way.is_ended);
                    continue;
                };
                let length = result.unwrap();
                assert_eq!(length == 0, way.bytes.is_empty());
                assert!(way.bytes.iter().take(length).eq(&buffer[..length]));
                if !is_peek {
                    way.bytes.drain(..length);
                }
            }
            Step::Shutdown(side) => {
                streams[usize::from(side)].end().unwrap();
                ways[usize::from(!side)].is_ended = true;
            }
        }
    }
    for stream in &streams {
        stream.end().unwrap();
    }
    for (mut stream, way) in streams.into_iter().zip(ways) {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(way.bytes.iter().eq(&rest), "what was left");
    }
}

/// Two fibers with a side each take their own steps at once: one reads what the other wrote.
fn follow_at_once<S: Stream>(streams: [S; 2], steps: &[Step], rt: &Runtime) {
    let fibers = [0, 1].into_iter().zip(streams).map(|(side, mut stream)| {
        let of_side = |step: &&Step| {
            let (Step::Write(on, _) | Step::Read(on, _) | Step::Peek(on, _) | Step::Shutdown(on)) =
                **step;
            usize::from(on) == side
        };
        let steps: Vec<Step> = steps.iter().filter(of_side).copied().collect();
        rt.spawn(move || {
            let (mut written, mut read, mut peeked) = (Vec::new(), Vec::new(), Vec::new());
            let limit = Duration::from_micros(200);
            for step in steps {
                match step {
                    Step::Write(_, n) => {
                        let bytes = pattern(n, side as u8);
                        // A limit may end this between two parts, so each part is written by its
                        // own call.
                        if let Ok(n) = time::timeout(limit, || stream.write(&bytes)) {
                            written.extend_from_slice(&bytes[..n.unwrap_or(0)]);
                        }
                    }
                    Step::Read(_, n) => {
                        let mut buffer = vec![0; n];
                        if let Ok(n) = time::timeout(limit, || stream.read(&mut buffer)) {
                            read.extend_from_slice(&buffer[..n.unwrap()]);
                        }
                    }
                    Step::Peek(_, n) => {
                        let mut buffer = vec![0; n];
                        if let Ok(Some(n)) = time::timeout(limit, || stream.peek(&mut buffer)) {
                            peeked.push((read.len(), buffer[..n.unwrap()].to_vec()));
                        }
                    }
                    Step::Shutdown(_) => stream.end().unwrap(),
                }
            }
            stream.end().unwrap();
            stream.read_to_end(&mut read).unwrap();
            for (at, bytes) in peeked {
                assert!(read[at..].starts_with(&bytes), "peek returned other bytes");
            }
            (written, read)
        })
    });
    let fibers: Vec<_> = fibers.collect();
    let [one, other] = <[_; 2]>::try_from(fibers).ok().unwrap();
    let ((wrote_one, read_one), (wrote_other, read_other)) =
        (one.join().unwrap(), other.join().unwrap());
    assert!(read_one == wrote_other && read_other == wrote_one);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streams_do_as_the_model_says(steps in steps()) {
        let run = |steps: &[Step]| {
            follow(tcp_pair().into(), steps);
            follow(UnixStream::pair().unwrap().into(), steps);
        };
        within(120, || {
            run(&steps);
            for driver in DRIVERS {
                let (rt, _hog) = pressed(driver);
                rt.block_on(|| run(&steps));
            }
        });
    }

    #[test]
    fn of_two_that_interleave_each_reads_what_the_other_wrote(steps in steps()) {
        within(120, || {
            for driver in DRIVERS {
                let (rt, _hog) = pressed(driver);
                follow_at_once(tcp_pair().into(), &steps, &rt);
                follow_at_once(UnixStream::pair().unwrap().into(), &steps, &rt);
            }
        });
    }
}

/// Work that is called until it returns that all is done.
type Deed = Box<dyn Fn(&mut Random) -> bool + Send + Sync>;

/// Runtimes that are shut down in the middle, before the one that may finish.
const CUT_SHORT: usize = 5;

/// Runs two pieces of work at once, on one runtime after the other.
///
/// Each runtime but the last is shut down at some moment, which cancels its fibers.
fn over_several_lives(driver: &str, seed: u64, deeds: [Deed; 2]) {
    let mut random = Random::new(seed);
    let deeds = deeds.map(Arc::new);
    for life in 0..=CUT_SHORT {
        let (rt, hog) = pressed(driver);
        let fibers = deeds.clone().map(|deed| {
            let mut random = Random::new(random.below(1 << 40));
            rt.spawn(move || while !deed(&mut random) {})
        });
        if life < CUT_SHORT {
            std::thread::sleep(Duration::from_micros(random.below(4_000)));
            drop(hog);
            let report = rt.shutdown_timeout(Duration::from_secs(60));
            assert!(report.is_clean(), "seed {seed}: {report:?}");
            for fiber in fibers {
                let is_cancelled = |error: indent::JoinError| error.is_cancelled();
                assert!(fiber.join().map_or_else(is_cancelled, |()| true));
            }
        } else {
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        }
    }
}

/// A time that is often too short.
fn some_time(random: &mut Random) -> Duration {
    Duration::from_micros(random.below(1_000))
}

#[test]
fn no_byte_of_a_pipe_is_lost_or_comes_twice_whichever_fiber_is_cancelled() {
    within(120, || {
        for (seed, driver) in (0..8).flat_map(|seed| DRIVERS.map(|driver| (seed, driver))) {
            let text: Arc<[u8]> = pattern(6 << 20, seed as u8).into();
            let (reader, writer) = pipe().unwrap();
            let (sent, seen) = (AtomicUsize::new(0), Arc::new(Mutex::new(Vec::new())));
            let (given, got) = (text.clone(), seen.clone());
            let write = move |random: &mut Random| {
                let at = sent.load(SeqCst);
                let part = &given[at..(at + 1 + random.below(40_000) as usize).min(given.len())];
                if let Ok(n) = time::timeout(some_time(random), || (&writer).write(part)) {
                    sent.fetch_add(n.unwrap(), SeqCst);
                }
                sent.load(SeqCst) == given.len()
            };
            let read = move |random: &mut Random| {
                let mut buffer = vec![0; 1 + random.below(40_000) as usize];
                let result = time::timeout(some_time(random), || (&reader).read(&mut buffer));
                let mut got = got.lock().unwrap();
                got.extend_from_slice(&buffer[..result.map_or(0, |n| n.unwrap())]);
                got.len() == text.len()
            };
            over_several_lives(driver, seed, [Box::new(write), Box::new(read)]);
            let seen = seen.lock().unwrap();
            assert!(
                *seen == pattern(6 << 20, seed as u8),
                "{driver}, seed {seed}"
            );
        }
    });
}

/// Datagrams of a test, and how many of them may be on their way: there is room for that many.
const DATAGRAMS: usize = 600;
const ON_THEIR_WAY: usize = 16;

/// Sends numbered datagrams by one call and receives them by the other; each comes once.
fn datagrams(
    driver: &str,
    seed: u64,
    send: impl Fn(&[u8]) -> io::Result<usize> + Send + Sync + 'static,
    receive: impl Fn(&mut [u8]) -> io::Result<usize> + Send + Sync + 'static,
) {
    let (sent, came) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::new(Mutex::new(vec![0; DATAGRAMS]));
    let (counts, received) = (seen.clone(), came.clone());
    let datagram = |number: usize| {
        let length = number * 7 % 1_000;
        let number = u32::try_from(number).unwrap();
        [&number.to_le_bytes()[..], &pattern(length, number as u8)].concat()
    };
    let sender = move |random: &mut Random| {
        let number = sent.load(SeqCst);
        if number - came.load(SeqCst) >= ON_THEIR_WAY {
            time::sleep(Duration::from_micros(random.below(300)));
        } else if number < DATAGRAMS {
            let bytes = datagram(number);
            if let Ok(length) = time::timeout(some_time(random), || send(&bytes)) {
                assert_eq!(length.unwrap(), bytes.len());
                sent.fetch_add(1, SeqCst);
            }
        }
        sent.load(SeqCst) == DATAGRAMS
    };
    let receiver = move |random: &mut Random| {
        let mut buffer = [0; 2_000];
        if let Ok(length) = time::timeout(some_time(random), || receive(&mut buffer)) {
            let bytes = &buffer[..length.unwrap()];
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            assert_eq!(bytes, datagram(number));
            counts.lock().unwrap()[number] += 1;
            received.fetch_add(1, SeqCst);
        }
        received.load(SeqCst) == DATAGRAMS
    };
    over_several_lives(driver, seed, [Box::new(sender), Box::new(receiver)]);
    assert_eq!(
        *seen.lock().unwrap(),
        [1; DATAGRAMS],
        "{driver}, seed {seed}"
    );
}

#[test]
fn no_datagram_is_lost_or_comes_twice_whichever_fiber_is_cancelled() {
    within(120, || {
        for (seed, driver) in (0..4).flat_map(|seed| DRIVERS.map(|driver| (seed, driver))) {
            let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
            one.connect(other.local_addr().unwrap()).unwrap();
            let receive = move |buffer: &mut [u8]| other.recv_from(buffer).map(|(n, _)| n);
            datagrams(driver, seed, move |bytes| one.send(bytes), receive);

            let (one, other) = UnixDatagram::pair().unwrap();
            let receive = move |buffer: &mut [u8]| other.recv(buffer);
            datagrams(driver, seed, move |bytes| one.send(bytes), receive);

            // Where the kernel does not report that there is room, and where there is room for few.
            let path = fresh_path();
            let (one, other) = (
                UnixDatagram::unbound().unwrap(),
                UnixDatagram::bind(&path).unwrap(),
            );
            let receive = move |buffer: &mut [u8]| other.recv_from(buffer).map(|(n, _)| n);
            datagrams(
                driver,
                seed,
                move |bytes| one.send_to(bytes, &path),
                receive,
            );
        }
    });
}
