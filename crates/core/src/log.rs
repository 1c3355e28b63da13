//! Container logs: line formats, filtering, and rotation.
//!
//! A log is untrusted input. The runtime writes it line by line, and a full disk or a crash can
//! leave truncated lines. Unreadable lines are skipped and never stop the rest.

mod line;
mod rotation;
mod source;

pub use line::{Format, Line, Stream};
pub use rotation::{
    COMPRESSED, RotationPlan, RotationPolicy, UNFINISHED, plan_rotation, rotated_name,
};
pub use source::{LogUnavailable, instance_to_read};

use jiff::Timestamp;

/// Requested part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only the last lines of the file; a line split into several parts counts as several.
    pub tail: Option<u64>,
    pub since: Option<Timestamp>,
    /// `None`: both.
    pub stream: Option<Stream>,
    /// Prefix each line with its timestamp.
    pub timestamps: bool,
    /// Maximum number of bytes, including timestamps.
    pub limit_bytes: Option<u64>,
}

/// Whether more lines may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    More,
    /// The byte limit is reached.
    Full,
}

/// Converts lines of a log file into the requested output.
#[derive(Clone, Debug)]
pub struct Filter {
    selection: Selection,
    /// Detected from the first readable line.
    format: Option<Format>,
    left: Option<u64>,
    /// The next text starts a line; otherwise it continues a split one.
    at_line_start: bool,
}

impl Filter {
    pub fn new(selection: Selection) -> Self {
        let left = selection.limit_bytes;
        Self { selection, format: None, left, at_line_start: true }
    }

    /// Starts another file, which may have another format.
    pub fn next_file(&mut self) {
        self.format = None;
    }

    /// Reads one line of the file, with or without its newline, and writes the requested part of
    /// it.
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

/// Offset at which the last `lines` lines of a block start, or how many of them are missing.
///
/// For reading a file from its end, block by block. The newline at the end of the file ends a line
/// and does not start one.
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
