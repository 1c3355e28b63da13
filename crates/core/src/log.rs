//! Container logs: what their lines mean, which of them somebody asked for, and when a file is
//! put aside.
//!
//! A log is outside data. The runtime writes it line by line, and a full disk or a crash leaves
//! half lines and worse; whatever cannot be read is passed over, and never stops the rest.

mod line;
mod rotation;
mod source;

pub use line::{Format, Line, Stream};
pub use rotation::{COMPRESSED, Chores, RotationPolicy, UNFINISHED, chores, rotated_name};
pub use source::{NoLog, instance_to_read};

use jiff::Timestamp;

/// What of a log somebody asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only the last so many lines of the file, where a line that was split counts as several.
    pub tail: Option<u64>,
    pub since: Option<Timestamp>,
    /// `None`: both.
    pub stream: Option<Stream>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// At most so many bytes, times included.
    pub limit_bytes: Option<u64>,
}

/// Whether more may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    More,
    /// The limit is reached.
    Full,
}

/// Turns lines of a file into what was asked for.
#[derive(Clone, Debug)]
pub struct Filter {
    selection: Selection,
    /// Decided by the first line that can be read.
    format: Option<Format>,
    left: Option<u64>,
    /// The next text begins a line; else it goes on with one that was split.
    at_line_start: bool,
}

impl Filter {
    pub fn new(selection: Selection) -> Self {
        let left = selection.limit_bytes;
        Self { selection, format: None, left, at_line_start: true }
    }

    /// Another file: it may be written by another runtime.
    pub fn next_file(&mut self) {
        self.format = None;
    }

    /// Takes one line of the file, with or without its newline, and writes what is wanted of it.
    pub fn take(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Flow {
        let Some(line) = self.read(raw) else { return Flow::More };
        let Selection { since, stream, timestamps, .. } = &self.selection;
        if stream.is_some_and(|wanted| wanted != line.stream)
            || since.is_some_and(|since| line.time < since)
        {
            return Flow::More;
        }
        let began = out.len();
        if *timestamps && self.at_line_start {
            out.extend_from_slice(line.time_in_nanoseconds().as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(&line.text);
        if !line.partial {
            out.push(b'\n');
        }
        self.at_line_start = !line.partial;
        let Some(left) = &mut self.left else { return Flow::More };
        let written = u64::try_from(out.len() - began).unwrap_or(u64::MAX);
        if written < *left {
            *left -= written;
            return Flow::More;
        }
        out.truncate(began + usize::try_from(*left).unwrap_or(usize::MAX));
        *left = 0;
        Flow::Full
    }

    fn read<'a>(&mut self, raw: &'a [u8]) -> Option<Line<'a>> {
        match self.format {
            Some(format) => Line::parse(raw, format),
            None => {
                let (format, line) = Line::recognise(raw)?;
                self.format = Some(format);
                Some(line)
            }
        }
    }
}

/// Where the last `lines` lines of a block begin, or how many of them it does not hold.
///
/// For reading a file from its end, block by block: the newline that ends the file ends a line, it
/// does not begin one.
pub fn tail_start(block: &[u8], lines: u64, is_last: bool) -> Result<usize, u64> {
    let mut left = lines;
    for (at, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
        if is_last && at + 1 == block.len() {
            continue;
        }
        if left <= 1 {
            return Ok(at + 1);
        }
        left -= 1;
    }
    Err(left)
}

#[cfg(test)]
mod tests;
