//! Kinds of values: their limits, how they are parsed and printed, and the words for errors.
//!
//! Internally every value is a `u64`, its *raw* form: a number, bytes, nanoseconds, a signal, or
//! the index in a list of words. The text that a kind prints parses to the same value.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Io, Rounding, ThreadLocals};
use crate::sys::signal_names;

pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const MICROSECOND: u64 = 1_000;
pub(super) const SECOND: u64 = 1_000 * MILLISECOND;

/// The values a setting allows, and their text form.
pub(super) enum Kind {
    Number(RangeInclusive<u64>),
    PowerOfTwo(RangeInclusive<u64>),
    Bytes(RangeInclusive<u64>),
    /// In nanoseconds; written in units.
    Time(Unit, RangeInclusive<u64>),
    /// In nanoseconds; written in milliseconds with or without a fraction.
    FineTime(RangeInclusive<u64>),
    Word(&'static [&'static str]),
    /// One of the signals a runtime may use; written by name.
    Signal,
    /// The values of the method's type, described by these words.
    Typed(&'static str),
}

/// The unit in which a time is written; its value is in nanoseconds.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Millisecond = MILLISECOND as isize,
    Microsecond = MICROSECOND as isize,
}

impl Kind {
    pub(super) fn allows(&self, raw: u64) -> bool {
        match self {
            Kind::Number(range)
            | Kind::Bytes(range)
            | Kind::Time(_, range)
            | Kind::FineTime(range) => range.contains(&raw),
            Kind::PowerOfTwo(range) => raw.is_power_of_two() && range.contains(&raw),
            Kind::Word(words) => raw < words.len() as u64,
            Kind::Signal => signal_name(raw).is_some(),
            Kind::Typed(_) => true,
        }
    }

    /// Parses a text; the value may be beyond the limits.
    pub(super) fn parse(&self, text: &str) -> Option<u64> {
        match self {
            Kind::Number(_) | Kind::PowerOfTwo(_) => digits(text),
            Kind::Bytes(_) => SIZES
                .iter()
                .find_map(|(unit, bytes)| digits(text.strip_suffix(unit)?)?.checked_mul(*bytes)),
            Kind::Time(unit, _) => digits(text)?.checked_mul(*unit as u64),
            Kind::FineTime(_) => fine_time(text),
            Kind::Word(words) => words
                .iter()
                .position(|word| *word == text)
                .map(Value::to_raw),
            Kind::Signal => signal_names::number(text).map(Value::to_raw),
            Kind::Typed(_) => None,
        }
    }

    /// Prints a value as a text that parses.
    pub(super) fn show(&self, raw: u64) -> String {
        match self {
            Kind::Bytes(_) => {
                let fits = |(_, bytes): &&(&str, u64)| raw.is_multiple_of(*bytes);
                let (unit, bytes) = SIZES
                    .iter()
                    .find(fits)
                    .expect("any number is so many bytes");
                format!("{}{unit}", raw / bytes)
            }
            Kind::Time(unit, _) => (raw / *unit as u64).to_string(),
            Kind::FineTime(_) => {
                let (whole, rest) = (raw / MILLISECOND, raw % MILLISECOND);
                let text = format!("{whole}.{rest:0DECIMALS$}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Kind::Word(words) => words[raw as usize].to_owned(),
            Kind::Signal => signal_name(raw).unwrap_or_else(|| raw.to_string()),
            Kind::Number(_) | Kind::PowerOfTwo(_) | Kind::Typed(_) => raw.to_string(),
        }
    }

    /// Describes the allowed values.
    pub(super) fn limits(&self) -> String {
        let span = |range: &RangeInclusive<u64>| {
            format!(
                "{} to {}",
                self.show(*range.start()),
                self.show(*range.end())
            )
        };
        match self {
            Kind::Number(range) | Kind::Bytes(range) => span(range),
            Kind::PowerOfTwo(range) => format!("a power of two, {}", span(range)),
            Kind::Time(Unit::Millisecond, range) | Kind::FineTime(range) => {
                span(range) + " milliseconds"
            }
            Kind::Time(Unit::Microsecond, range) => span(range) + " microseconds",
            Kind::Word(words) => words.join(" or "),
            Kind::Signal => signal_names::list(),
            Kind::Typed(words) => (*words).to_owned(),
        }
    }

    /// Describes the text form, where the limits do not show it.
    pub(super) fn form(&self) -> &'static str {
        match self {
            Kind::Number(_) | Kind::PowerOfTwo(_) | Kind::Time(..) => ", a whole number",
            Kind::Bytes(_) => {
                ", a whole number of bytes or one with KiB, MiB or GiB right after it"
            }
            Kind::FineTime(_) => ", a number with at most six decimals",
            Kind::Signal => ", a name",
            Kind::Word(_) | Kind::Typed(_) => "",
        }
    }
}

/// Units of sizes, largest first; `K` and `KB` are missing because they mean two things.
const SIZES: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("", 1),
];

/// A number without sign, point or spaces.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Decimals of a time in milliseconds: down to nanoseconds.
const DECIMALS: usize = 6;

/// Nanoseconds, from a number of milliseconds with or without a fraction.
fn fine_time(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let missing = DECIMALS.checked_sub(fraction.len())?;
    let rest = digits(fraction)? * 10_u64.pow(missing as u32);
    digits(whole)?.checked_mul(MILLISECOND)?.checked_add(rest)
}

fn signal_name(raw: u64) -> Option<String> {
    signal_names::name(i32::try_from(raw).ok()?)
}

/// A type of values in the builder; errors print one by `Debug`.
pub(crate) trait Value: Copy + Debug {
    fn to_raw(self) -> u64;
    /// Converts a value that its setting allows.
    fn from_raw(raw: u64) -> Self;
}

impl Value for usize {
    fn to_raw(self) -> u64 {
        self as u64
    }

    fn from_raw(raw: u64) -> Self {
        raw as usize
    }
}

impl Value for u32 {
    fn to_raw(self) -> u64 {
        self.into()
    }

    fn from_raw(raw: u64) -> Self {
        u32::try_from(raw).expect("no setting of this type allows more")
    }
}

impl Value for i32 {
    /// Numbers below zero become one value, which no setting allows.
    fn to_raw(self) -> u64 {
        u64::try_from(self).unwrap_or(u64::MAX)
    }

    fn from_raw(raw: u64) -> Self {
        i32::try_from(raw).expect("no setting of this type allows more")
    }
}

impl Value for bool {
    fn to_raw(self) -> u64 {
        self.into()
    }

    fn from_raw(raw: u64) -> Self {
        raw != 0
    }
}

impl Value for Duration {
    /// Five centuries and more become one value, which no setting allows.
    fn to_raw(self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }

    fn from_raw(raw: u64) -> Self {
        Duration::from_nanos(raw)
    }
}

impl Value for Io {
    fn to_raw(self) -> u64 {
        self as u64
    }

    fn from_raw(raw: u64) -> Self {
        match raw {
            0 => Io::Auto,
            1 => Io::Uring,
            _ => Io::Epoll,
        }
    }
}

impl Value for ThreadLocals {
    fn to_raw(self) -> u64 {
        self as u64
    }

    fn from_raw(raw: u64) -> Self {
        match raw {
            0 => ThreadLocals::Fiber,
            _ => ThreadLocals::Thread,
        }
    }
}

impl Value for Rounding {
    fn to_raw(self) -> u64 {
        self as u64
    }

    fn from_raw(raw: u64) -> Self {
        match raw {
            0 => Rounding::Up,
            _ => Rounding::Down,
        }
    }
}
