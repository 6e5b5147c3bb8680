//! Parsers, formats and compression, with switches in the middle.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::LazyLock;

use chrono::{Datelike, Local, TimeZone};
use regex::{Captures, Regex};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use crate::body::{Me, Outcome, ensure};
use crate::step::{again, step};

/// One for all, whose caches are kept by thread, and held while an iterator lives.
pub(crate) fn regex(me: &Me) -> Outcome {
    static PAIR: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?<key>\w+)=(?<value>\d+)").expect("a regular expression"));
    let pair = |i: u64| format!("key{i}={} ", i * me.n);
    let text: String = (0..20).map(pair).collect();
    let mut sum = 0;
    for (i, captures) in PAIR.captures_iter(&text).enumerate() {
        step();
        let inner = again(|| PAIR.find(&captures[0]).map(|found| found.len()));
        ensure!(
            inner == Some(captures[0].len()),
            "{inner:?} in {captures:?}"
        );
        ensure!(captures["key"] == format!("key{i}"), "{captures:?} at {i}");
        sum += captures["value"].parse::<u64>().unwrap_or(0);
    }
    let swapped = PAIR.replace_all(&text, |captures: &Captures<'_>| {
        step();
        format!("{}={}", &captures["value"], &captures["key"])
    });
    let expected: String = (0..20).map(|i| format!("{}=key{i} ", i * me.n)).collect();
    ensure!(swapped == expected, "{swapped} instead of {expected}");
    let words = text.split(' ').filter(|word| PAIR.is_match(word)).count();
    ensure!(words == 20, "{words} words");
    Ok(sum)
}

/// Numbers that are slow to read and to write.
#[derive(Debug, PartialEq)]
struct Slow(Vec<u64>);

impl Serialize for Slow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(self.0.len()))?;
        for number in &self.0 {
            step();
            sequence.serialize_element(number)?;
        }
        sequence.end()
    }
}

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = Slow;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Slow, A::Error> {
                let mut numbers = Vec::new();
                while let Some(number) = sequence.next_element()? {
                    step();
                    numbers.push(number);
                }
                Ok(Slow(numbers))
            }
        }
        deserializer.deserialize_seq(Numbers)
    }
}

pub(crate) fn serde_json(me: &Me) -> Outcome {
    let slow = Slow((0..10).map(|i| i * me.n).collect());
    let text = serde_json::to_string(&slow).map_err(|error| error.to_string())?;
    let back: Slow = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    ensure!(back == slow, "{back:?} instead of {slow:?}");
    let value = again(|| serde_json::json!({ "n": me.n, "list": [1, 2, me.n], "text": text }));
    step();
    let text = again(|| value.to_string());
    step();
    let back: serde_json::Value = again(|| serde_json::from_str(&text).unwrap_or_default());
    ensure!(back == value, "{back} instead of {value}");
    Ok(text.len() as u64)
}

/// The time zone is cached for each thread.
pub(crate) fn chrono(me: &Me) -> Outcome {
    let mut seconds = 0;
    for day in 1..=20 {
        let date = again(|| Local.with_ymd_and_hms(2024, 2, day, 12, 0, 0).single());
        let Some(date) = date else {
            return Err(format!("no day {day}"));
        };
        step();
        let text = date.to_rfc3339();
        step();
        let back = chrono::DateTime::parse_from_rfc3339(&text);
        ensure!(
            back == Ok(date.fixed_offset()),
            "{back:?} instead of {date}"
        );
        let now = again(Local::now);
        ensure!(now.year() > 2000, "{now}");
        seconds += date.timestamp() as u64 % 1000 * me.n;
    }
    Ok(seconds)
}

/// Gives and takes a few bytes at a time.
struct Slowly<T>(T);

impl<W: Write> Write for Slowly<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        step();
        let some = bytes.len().min(1000);
        self.0.write(&bytes[..some])
    }

    fn flush(&mut self) -> io::Result<()> {
        step();
        self.0.flush()
    }
}

impl<R: Read> Read for Slowly<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        step();
        let some = bytes.len().min(1000);
        self.0.read(&mut bytes[..some])
    }
}

pub(super) fn slowly<T>(inner: T) -> impl Read + Write
where
    T: Read + Write,
{
    Slowly(inner)
}

/// A text that compresses a little.
pub(super) fn sample(n: u64) -> Vec<u8> {
    let line = |i: u64| format!("line {i} of {n}: {}\n", i.wrapping_mul(n + 1) % 1009);
    (0..400).flat_map(|i| line(i).into_bytes()).collect()
}

pub(crate) fn flate2(me: &Me) -> Outcome {
    let plain = sample(me.n);
    let compress = || -> io::Result<Vec<u8>> {
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::GzEncoder::new(Slowly(Vec::new()), level);
        for part in plain.chunks(4000) {
            encoder.write_all(part)?;
            step();
        }
        Ok(encoder.finish()?.0)
    };
    let packed = again(compress).map_err(|error| error.to_string())?;
    let mut back = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(Slowly(&packed[..]));
    let read = decoder.read_to_end(&mut back);
    ensure!(read.is_ok() && back == plain, "{read:?}");
    Ok(packed.len() as u64)
}
