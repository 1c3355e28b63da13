//! Pressure stall information: how long processes waited for a resource.

use std::path::Path;

use super::{Result, directory};

/// Shares of time in per cent over the last seconds, and total microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_micros: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one process waited.
    pub some: Stall,
    /// All processes waited.
    pub full: Stall,
}

/// `None` if the kernel does not count it.
pub(super) fn read(dir: &Path, file: &str) -> Result<Option<Pressure>> {
    match directory::read(dir, file) {
        Ok(text) => Ok(text.map(|text| parse(&text))),
        // If switched off at boot, the files exist but cannot be opened.
        Err(super::CgroupError::Io { source, .. })
            if source.raw_os_error() == Some(nix::libc::EOPNOTSUPP) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, then `full …`
fn parse(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let stall = match words.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "avg10" => stall.avg10 = value.parse().unwrap_or_default(),
                "avg60" => stall.avg60 = value.parse().unwrap_or_default(),
                "avg300" => stall.avg300 = value.parse().unwrap_or_default(),
                "total" => stall.total_micros = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
    }
    pressure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read_and_unknown_fields_ignored() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=12345 new=1\n\
                    full avg10=0.00 avg60=x avg300=0.10 total=7\nodd\n";
        let some = Stall { avg10: 1.5, avg60: 0.25, avg300: 0.0, total_micros: 12345 };
        let full = Stall { avg10: 0.0, avg60: 0.0, avg300: 0.1, total_micros: 7 };
        assert_eq!(parse(text), Pressure { some, full });
        assert_eq!(parse(""), Pressure::default());
    }
}
