//! Signal handling: the two that end the program, and the `signals` command that prints all.

use std::future::Future;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};
use tokio::sync::mpsc;

/// Listens for a request to stop from outside.
pub(crate) struct Stop {
    terminate: Arrivals,
    interrupt: Arrivals,
}

impl Stop {
    /// From here on the two signals no longer kill, and process 1 receives them.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The result of the work, or 0 if a stop is requested first.
    pub(crate) async fn or(
        &mut self,
        work: impl Future<Output = anyhow::Result<u8>>,
    ) -> anyhow::Result<u8> {
        tokio::select! {
            code = work => code,
            () = self.requested() => Ok(0),
        }
    }
}

#[derive(Args)]
pub(crate) struct Signals {
    /// Do not exit on this signal, only print it; may be repeated
    #[arg(long, value_name = "NAME", value_parser = parse)]
    ignore: Vec<i32>,
    /// Exit with this code
    #[arg(long, default_value_t = 0)]
    code: u8,
}

impl Signals {
    /// Prints signals until one arrives that usually ends a process and is not ignored.
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        let (sender, mut arrived) = mpsc::unbounded_channel();
        for number in receivable() {
            let mut arrivals = signal(SignalKind::from_raw(number))
                .with_context(|| format!("cannot listen for {}", name(number)))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() && sender.send(number).is_ok() {}
            });
        }
        println!("waiting for signals");
        while let Some(number) = arrived.recv().await {
            println!("received {}", name(number));
            if ends_a_process(number) && !self.ignore.contains(&number) {
                break;
            }
        }
        Ok(self.code)
    }
}

/// The classic signals by number, as on x86_64 and aarch64.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

fn name(number: i32) -> String {
    let classic = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    match classic {
        Some(name) => format!("SIG{name}"),
        None => format!("SIGRTMIN+{}", number - RTMIN),
    }
}

/// A name with or without `SIG`, or a number.
fn parse(text: &str) -> Result<i32, String> {
    let wanted = text.to_ascii_uppercase();
    let short = wanted.strip_prefix("SIG").unwrap_or(&wanted);
    (1..=RTMAX)
        .filter(|number| *number < RTMIN - 2 || *number >= RTMIN)
        .find(|number| name(*number) == format!("SIG{short}") || number.to_string() == short)
        .ok_or_else(|| format!("unknown signal {text:?}"))
}

/// All except those that cannot be caught, those that indicate a broken program, and the two that
/// the C library reserves.
fn receivable() -> impl Iterator<Item = i32> {
    let withheld = |number: &i32| {
        matches!(name(*number).as_str(), "SIGKILL" | "SIGSTOP" | "SIGILL" | "SIGFPE" | "SIGSEGV")
    };
    (1..=31).chain(RTMIN..=RTMAX).filter(move |number| !withheld(number))
}

/// By the kernel's default action.
fn ends_a_process(number: i32) -> bool {
    let survived = ["SIGCHLD", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH"];
    !survived.contains(&name(number).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for number in receivable() {
            assert_eq!(parse(&name(number)), Ok(number));
        }
        for (text, number) in
            [("TERM", 15), ("sigterm", 15), ("15", 15), ("RTMIN+3", 37), ("SIGRTMIN+30", 64)]
        {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
        for text in ["", "SIG", "0", "32", "65", "TERMINATE", "RTMIN+31"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
