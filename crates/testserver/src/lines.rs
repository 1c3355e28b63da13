//! `lines` command: log lines of any number, length and rate.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

#[derive(Args)]
pub(crate) struct Lines {
    /// Number of lines; 0 for no end
    count: u64,
    /// Length of each without line break; never shorter than its number
    #[arg(long, default_value_t = 0)]
    bytes: usize,
    /// Pause after each line
    #[arg(long, value_name = "MILLISECONDS", value_parser = crate::milliseconds)]
    every: Option<Duration>,
    #[arg(long, value_enum, default_value_t = Stream::Stdout)]
    to: Stream,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stream {
    Stdout,
    Stderr,
    /// Odd lines to stdout, even ones to stderr
    Both,
}

impl Lines {
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        let mut number = 0;
        while self.count == 0 || number < self.count {
            number += 1;
            let line = line(number, self.bytes);
            self.write(number, &line).with_context(|| format!("cannot write line {number}"))?;
            match self.every {
                Some(pause) => tokio::time::sleep(pause).await,
                // Lets a signal through.
                None => tokio::task::yield_now().await,
            }
        }
        Ok(0)
    }

    fn write(&self, number: u64, line: &str) -> io::Result<()> {
        match self.to {
            Stream::Stdout => writeln!(io::stdout(), "{line}"),
            Stream::Stderr => writeln!(io::stderr(), "{line}"),
            Stream::Both if number % 2 == 1 => writeln!(io::stdout(), "{line}"),
            Stream::Both => writeln!(io::stderr(), "{line}"),
        }
    }
}

/// `line 7`, padded with dots to the requested length.
fn line(number: u64, bytes: usize) -> String {
    format!("{:.<bytes$}", format_args!("line {number}").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_its_number_and_the_requested_length() {
        for (number, bytes, want) in
            [(7, 0, "line 7"), (7, 6, "line 7"), (12, 10, "line 12..."), (100, 3, "line 100")]
        {
            assert_eq!(line(number, bytes), want);
        }
        assert_eq!(line(1, 40_000).len(), 40_000);
    }
}
