//! Pipes and sources: nothing is lost, waits end in time, and cancellation ends waits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indent::io::{PipeReader, PipeWriter, Source, pipe};
use indent::park::ParkReason;
use indent::runtime::Runtime;
use indent::task::{self, Phase};
use indent::time;

use crate::common::{self, wait_for, within};
use crate::sockets::{self, limit_descriptors, pattern, wait_for_waiters};

const MS: Duration = Duration::from_millis(1);

fn start(workers: usize) -> Runtime {
    sockets::start(module_path!(), workers)
}

fn everywhere(body: fn()) {
    sockets::everywhere(module_path!(), body);
}

#[test]
fn two_pipes_with_a_reader_each_deliver_every_message_and_the_end() {
    const MESSAGES: usize = 1_000;
    within(60, || {
        for workers in [1, 2] {
            let rt = start(workers);
            let seen = Arc::new(AtomicUsize::new(0));
            let pipes = [(); 2].map(|()| pipe().unwrap());
            let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
            let readers: Vec<_> = readers
                .into_iter()
                .map(|reader: PipeReader| {
                    let seen = seen.clone();
                    rt.spawn(move || {
                        let lines = BufReader::new(reader).lines();
                        lines.map(Result::unwrap).enumerate().for_each(|(i, line)| {
                            assert_eq!(line, format!("message {i}"));
                            seen.fetch_add(1, SeqCst);
                        });
                    })
                })
                .collect();
            let write = |mut writer: PipeWriter| {
                (0..MESSAGES / 2).for_each(|i| writeln!(writer, "message {i}").unwrap());
            };
            let mut writers = writers.into_iter();
            let one = writers.next().unwrap();
            let fiber = rt.spawn(move || write(one));
            write(writers.next().unwrap());
            fiber.join().unwrap();
            readers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert_eq!(seen.load(SeqCst), MESSAGES);
        }
    });
}

#[test]
fn a_pipe_that_is_full_makes_its_writer_wait() {
    everywhere(|| {
        let (mut reader, mut writer) = pipe().unwrap();
        let all = pattern(1 << 20, 9);
        let expected = all.clone();
        let fiber = indent::spawn(move || writer.write_all(&all).unwrap());
        let mut seen = Vec::new();
        reader.read_to_end(&mut seen).unwrap();
        assert!(seen == expected);
        fiber.join().unwrap();
    });
}

#[test]
fn several_buffers_go_through_a_pipe_in_order() {
    everywhere(|| {
        let (mut reader, mut writer) = pipe().unwrap();
        let parts = [&b"ab"[..], b"", b"cde"].map(IoSlice::new);
        assert_eq!(writer.write_vectored(&parts).unwrap(), 5);
        let (mut one, mut rest) = ([0; 1], [0; 8]);
        let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut rest)];
        assert_eq!(reader.read_vectored(&mut buffers).unwrap(), 5);
        assert_eq!((&one, &rest[..4]), (b"a", &b"bcde"[..]));
        writer.flush().unwrap();
    });
}

#[test]
fn a_clone_keeps_its_end_open() {
    everywhere(|| {
        let (mut reader, writer) = pipe().unwrap();
        let mut clone = writer.try_clone().unwrap();
        drop(writer);
        clone.write_all(b"x").unwrap();
        let other = reader.try_clone().unwrap();
        assert_eq!((&other).read(&mut [0; 8]).unwrap(), 1);
        drop(clone);
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    });
}

#[test]
fn an_end_converted_to_std_blocks_and_one_converted_from_std_does_not() {
    everywhere(|| {
        let (reader, writer) = pipe().unwrap();
        let mut reader = io::PipeReader::from(reader); // would return WouldBlock if it did not wait
        let late = indent::spawn(move || {
            time::sleep(5 * MS);
            (&writer).write_all(b"late").unwrap();
        });
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "late");
        late.join().unwrap();

        let (reader, writer) = io::pipe().unwrap();
        let (mut reader, writer) = (PipeReader::from(reader), PipeWriter::from(writer));
        let limit = time::timeout(5 * MS, || reader.read(&mut [0]).map(drop));
        assert!(limit.is_err(), "it waits where limits have effect");
        drop(OwnedFd::from(writer));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_child_process_writes_into_a_pipe() {
    everywhere(|| {
        let (mut reader, writer) = pipe().unwrap();
        let mut child = Command::new("echo")
            .arg("hello")
            .stdout(writer)
            .spawn()
            .unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello\n");
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn a_fiber_that_waits_for_a_pipe_is_parked_and_ends_when_cancelled() {
    within(60, || {
        let rt = start(1);
        let (mut reader, writer) = pipe().unwrap();
        let waiting = rt.spawn(move || reader.read(&mut [0; 8]));
        let (_reader, mut full) = pipe().unwrap();
        let stuck = rt.spawn(move || full.write_all(&pattern(1 << 20, 0)));
        let (read, write) = (waiting.fiber(), stuck.fiber());
        for fiber in [read, write] {
            wait_for("a parked fiber", || {
                fiber.phase() == Phase::Parked && fiber.park_reason() == ParkReason::Io
            });
        }
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report:?}");
        assert!(waiting.join().unwrap_err().is_cancelled());
        assert!(stuck.join().unwrap_err().is_cancelled());
        drop(writer);
    });
}

#[test]
fn a_descriptor_that_is_always_ready_is_refused_with_a_remedy() {
    everywhere(|| {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let error = Source::new(file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("regular file"), "{error}");
        assert!(error.to_string().contains("runtime::blocking"), "{error}");
        let folder = File::open(std::env::temp_dir()).unwrap();
        assert!(Source::new(folder).is_err());
        assert!(Source::new(File::open("/dev/null").unwrap()).is_err());
    });
}

#[test]
fn a_source_reports_when_it_can_be_read_and_written() {
    everywhere(|| {
        let (reader, writer) = io::pipe().unwrap();
        let reader = Source::new(reader).unwrap();
        let writer = Source::new(writer).unwrap();
        let soon = || Instant::now() + 5 * MS;
        let error = reader.wait_readable_until(soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        writer.wait_writable().unwrap();
        writer.wait_writable_until(Instant::now()).unwrap();
        let late = indent::spawn(move || {
            time::sleep(5 * MS);
            writer.get_ref().write_all(b"x").unwrap();
            writer
        });
        reader.wait_readable().unwrap();
        reader.wait_readable_until(Instant::now()).unwrap(); // it is still readable
        assert_eq!(reader.get_ref().read(&mut [0; 8]).unwrap(), 1);
        let writer = late.join().unwrap();
        drop(writer.into_inner());
        reader.wait_readable().unwrap(); // the end counts as readable
        assert!(format!("{reader:?}").starts_with("Source(PipeReader"));
    });
}

#[test]
fn a_source_whose_descriptor_was_replaced_waits_for_the_new_one() {
    everywhere(|| {
        let (reader, _writer) = io::pipe().unwrap();
        let mut source = Source::new(reader).unwrap();
        let soon = Instant::now() + 2 * MS;
        assert!(source.wait_readable_until(soon).is_err());
        let (reader, writer) = io::pipe().unwrap();
        *source.get_mut() = reader;
        (&writer).write_all(b"x").unwrap();
        source.wait_readable().unwrap();
        assert_eq!(source.get_ref().read(&mut [0; 8]).unwrap(), 1);
    });
}

#[test]
fn a_closure_is_called_until_it_does_not_return_would_block() {
    everywhere(|| {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let source = Source::new(other).unwrap();
        let fiber = indent::spawn(move || {
            let mut calls = 0;
            let mut buffer = [0; 8];
            let length = source.read_with(|mut stream| {
                calls += 1;
                stream.read(&mut buffer)
            });
            (calls, length.unwrap(), source)
        });
        time::sleep(5 * MS);
        (&one).write_all(b"xyz").unwrap();
        let (calls, length, source) = fiber.join().unwrap();
        assert!(calls >= 1);
        assert_eq!(length, 3);
        let block = pattern(1 << 20, 0);
        let reader = indent::spawn(move || io::copy(&mut &one, &mut io::sink()).unwrap());
        let mut left = &block[..];
        while !left.is_empty() {
            let n = source.write_with(|mut stream| stream.write(left)).unwrap();
            left = &left[n..];
        }
        drop(source);
        assert_eq!(reader.join().unwrap(), 1 << 20);
    });
}

#[test]
fn a_time_limit_ends_a_wait_for_a_source() {
    everywhere(|| {
        let (reader, _writer) = io::pipe().unwrap();
        let source = Source::new(reader).unwrap();
        assert!(time::timeout(5 * MS, || source.wait_readable()).is_err());
        let long = Instant::now() + Duration::from_secs(3600);
        assert!(time::timeout(5 * MS, || source.wait_readable_until(long)).is_err());
    });
}

#[test]
fn a_fiber_whose_reads_all_succeed_yields_and_notices_cancellation() {
    within(60, || {
        let rt = start(1);
        let reads = Arc::new(AtomicUsize::new(0));
        let seen = reads.clone();
        // The fiber writes what it reads, and never has to wait.
        let busy = rt.spawn(move || {
            let (reader, writer) = pipe().unwrap();
            loop {
                (&writer).write_all(b"x").unwrap();
                (&reader).read_exact(&mut [0]).unwrap();
                seen.fetch_add(1, SeqCst);
            }
        });
        let other = rt.spawn(|| (0..10).for_each(|_| task::yield_now()));
        other.join().unwrap();
        wait_for("many reads", || reads.load(SeqCst) > 1_000);
        let exhausted: u64 = (rt
            .metrics()
            .workers
            .iter()
            .map(|w| w.budget_exhausted_total))
        .sum();
        assert!(exhausted > 5, "{exhausted}");
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report:?}");
        let end: Result<(), _> = busy.join();
        assert!(end.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_fiber_that_computes_by_reads_that_succeed_notices_limits_and_cancellation() {
    fn reads_for_ever(reads: &AtomicUsize) {
        let (reader, writer) = pipe().unwrap();
        loop {
            (&writer).write_all(b"x").unwrap();
            (&reader).read_exact(&mut [0]).unwrap();
            reads.fetch_add(1, SeqCst);
        }
    }
    within(60, || {
        let rt = start(1);
        let reads = Arc::new(AtomicUsize::new(0));
        let seen = reads.clone();
        let busy = rt.spawn(move || {
            // From here on it is known to compute, and no other fiber waits that it would yield to.
            let begun = Instant::now();
            indent::runtime::no_preempt(|| while begun.elapsed() < 200 * MS {});
            assert!(time::timeout(5 * MS, || reads_for_ever(&AtomicUsize::new(0))).is_err());
            reads_for_ever(&seen);
        });
        wait_for("many reads", || reads.load(SeqCst) > 1_000);
        let report = rt.shutdown_timeout(Duration::from_secs(30));
        assert!(report.is_clean(), "{report:?}");
        assert!(busy.join().unwrap_err().is_cancelled());
    });
}

#[test]
fn two_sources_of_one_descriptor_are_both_notified() {
    within(60, || {
        let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mine = Arc::new(mine);
        let rt = start(1);
        for _ in 0..3 {
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let mine = mine.clone();
                    rt.spawn(move || Source::new(&*mine).unwrap().wait_readable().unwrap())
                })
                .collect();
            wait_for_waiters(&rt, waiters.len());
            (&theirs).write_all(&[1]).unwrap();
            waiters.into_iter().for_each(|fiber| fiber.join().unwrap());
            (&*mine).read_exact(&mut [0]).unwrap();
        }
    });
}

#[test]
fn a_fiber_is_notified_although_another_runtime_cannot_register_the_descriptor() {
    let text = common::alone_in(module_path!(), "one_waits_without_descriptors");
    assert!(text.contains("was notified"), "{text}");
}

#[test]
fn the_last_of_a_runtime_is_not_dropped_by_the_scheduler_of_another() {
    /// A value that belongs to a runtime, and records the thread that drops it.
    struct Gone(Arc<Mutex<Vec<String>>>);
    impl Drop for Gone {
        fn drop(&mut self) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("no name").to_owned();
            self.0.lock().unwrap().push(name);
        }
    }
    const ROUNDS: usize = 100;
    within(60, || {
        let elder = sockets::builder(module_path!()).workers(1);
        let elder = elder.thread_name("elder").build().unwrap();
        let names = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..ROUNDS {
            let gone = Gone(names.clone());
            let short = sockets::builder(module_path!()).workers(1);
            let short = short.on_thread_start(move || _ = &gone).build().unwrap();
            let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let source = Arc::new(Source::new(mine).unwrap());
            let waiting = [&short, &elder].map(|rt| {
                let source = source.clone();
                let fiber = rt.spawn(move || source.wait_readable().unwrap());
                wait_for_waiters(rt, 1);
                fiber
            });
            (&theirs).write_all(b"x").unwrap(); // the first runtime notifies both
            drop(short);
            waiting.into_iter().for_each(|fiber| drop(fiber.join()));
        }
        wait_for("the end of all", || names.lock().unwrap().len() == ROUNDS);
        let names = names.lock().unwrap();
        let by_elder = |name: &&String| name.starts_with("elder-") && *name != "elder-collector";
        assert_eq!(names.iter().find(by_elder), None, "{names:?}");
    });
}

mod child {
    use super::*;

    #[test]
    #[ignore = "limits the descriptors of its process"]
    fn one_waits_without_descriptors() {
        within(60, || {
            let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let source = Arc::new(Source::new(mine).unwrap());
            let [one, other] = [(); 2].map(|()| start(1));
            let wait = |rt: &Runtime| {
                let source = source.clone();
                rt.spawn(move || source.wait_readable())
            };
            let notified = wait(&one);
            wait_for_waiters(&one, 1);
            limit_descriptors(3); // all of which are taken
            let poor = wait(&other); // tries again and again, or reports what it lacks
            let asked = poor.fiber();
            wait_for("a fiber that cannot wait", || {
                poor.is_finished() || asked.park_reason() == ParkReason::Io
            });
            (&theirs).write_all(b"x").unwrap();
            notified.join().unwrap().unwrap();
            println!("was notified");
            drop(poor.join().unwrap());
        });
    }
}
