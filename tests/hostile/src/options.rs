//! The command line.

use std::time::Duration;

/// How to call the program, printed after a wrong call.
pub(crate) const USAGE: &str = "hostile NAME [--seconds S] [--long] [--quantum MS] [--seed N] [--patience S] [--warm] [--regions] | hostile all|regions … | hostile --list";

/// Ten minutes, for runs by hand.
const LONG: Duration = Duration::from_secs(600);
/// A long time, for machines with much other work.
const PATIENCE: Duration = Duration::from_secs(60);

/// The task to run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    List,
    One(String),
    All,
    /// The programs that are about regions, one after the other.
    Regions,
}

/// The contents of the command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) task: Task,
    pub(crate) time: Duration,
    /// In milliseconds, in the format of the runtime's variable.
    pub(crate) quantum: String,
    pub(crate) seed: u64,
    /// Time beyond its own before a program counts as hanging.
    pub(crate) patience: Duration,
    /// If set, begins when the heartbeat's frames are known.
    pub(crate) warm: bool,
    /// If set, pure parts run in regions.
    pub(crate) regions: bool,
}

/// Reads the arguments, without the program's own name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut arguments = arguments;
    let mut options = Options {
        task: Task::List,
        time: Duration::from_secs(2),
        quantum: "1".to_owned(),
        seed: u64::from(std::process::id()),
        patience: PATIENCE,
        warm: false,
        regions: false,
    };
    let mut named = false;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument}: of what?"));
        match argument.as_str() {
            "--list" => named = true,
            "--warm" => options.warm = true,
            "--regions" => options.regions = true,
            "--long" => options.time = LONG,
            "--seconds" => options.time = seconds(&value()?)?,
            "--patience" => options.patience = seconds(&value()?)?,
            "--quantum" => options.quantum = value()?,
            "--seed" => options.seed = number(&value()?)?,
            flag if flag.starts_with('-') => return Err(format!("{flag} is unknown")),
            name => {
                named = true;
                options.task = match name {
                    "all" => Task::All,
                    "regions" => Task::Regions,
                    name => Task::One(name.to_owned()),
                }
            }
        }
    }
    if named {
        Ok(options)
    } else {
        Err("which program?".to_owned())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or(format!("{text} is no number of seconds"))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_name_alone_runs_two_seconds_at_a_millisecond() {
        let options = parsed("mutex").unwrap();
        assert_eq!(options.task, Task::One("mutex".to_owned()));
        assert_eq!(options.time, Duration::from_secs(2));
        assert_eq!(options.quantum, "1");
    }

    #[test]
    fn all_options_are_understood() {
        let options = parsed("all --seconds 0.5 --quantum 0.2 --seed 7").unwrap();
        assert_eq!(options.task, Task::All);
        assert_eq!(options.time, Duration::from_millis(500));
        assert_eq!((options.quantum.as_str(), options.seed), ("0.2", 7));
        assert_eq!(parsed("all --long").unwrap().time, LONG);
        assert!(parsed("all --regions").unwrap().regions);
        assert_eq!(parsed("regions").unwrap().task, Task::Regions);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parsed("").unwrap_err(), "which program?");
        assert_eq!(parsed("mutex --fast").unwrap_err(), "--fast is unknown");
        assert_eq!(parsed("mutex --seed x").unwrap_err(), "x is no number");
    }
}
