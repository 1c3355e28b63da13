//! Env files for `fileKeyRef`.
//!
//! The format is a strict subset of shell: `NAME='value'`, with mandatory quotes, no escapes, and
//! values that may span lines. A file with anything else is refused, but only up to the requested
//! name: the rest is not read.

use super::error::ConfigError;

/// Longer lines are refused, as by upstream's reader.
const MAX_LINE: usize = 64 * 1024;

/// Result of reading the file of a `fileKeyRef`.
#[derive(Clone, Copy, Debug)]
pub enum EnvFile<'a> {
    /// The pod has no such volume, or the volume is not mounted.
    NoVolume,
    /// The file is missing or cannot be read.
    Unreadable,
    Read {
        /// Path on the host, for error messages.
        path: &'a str,
        content: &'a [u8],
    },
}

/// Value of `key`; empty if the file does not contain it.
pub fn value(content: &[u8], key: &str) -> Result<Vec<u8>, ConfigError> {
    let mut lines = Lines(content);
    while let Some(line) = lines.next()? {
        let line = trim_start(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let equals = line.iter().position(|b| *b == b'=').ok_or(ConfigError::BadEnvFile)?;
        let (name, rest) = line.split_at(equals);
        let rest = rest.get(1..).unwrap_or_default();
        if name.is_empty() || name.last().is_some_and(|b| is_blank(*b)) {
            return Err(ConfigError::BadEnvFile);
        }
        let wanted = name == key.as_bytes();
        if rest.first().is_some_and(|b| is_blank(*b)) {
            // As in a shell: an empty value followed by a command.
            if wanted {
                return Ok(Vec::new());
            }
            continue;
        }
        let value = quoted(rest, &mut lines)?;
        if wanted {
            return Ok(value);
        }
    }
    Ok(Vec::new())
}

/// Reads from the opening quote to the closing one, on this line or a later one.
fn quoted(start: &[u8], lines: &mut Lines<'_>) -> Result<Vec<u8>, ConfigError> {
    let mut line = start.strip_prefix(b"'").ok_or(ConfigError::BadEnvFile)?;
    let mut value = Vec::new();
    loop {
        if let Some(end) = line.iter().position(|b| *b == b'\'') {
            let (last, rest) = line.split_at(end);
            value.extend_from_slice(last);
            let rest = trim_start(rest.get(1..).unwrap_or_default());
            if !rest.is_empty() && !rest.starts_with(b"#") {
                return Err(ConfigError::BadEnvFile);
            }
            return Ok(value);
        }
        value.extend_from_slice(line);
        value.push(b'\n');
        line = lines.next()?.ok_or(ConfigError::BadEnvFile)?;
    }
}

/// Unread rest of a file, returned line by line.
struct Lines<'a>(&'a [u8]);

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<Option<&'a [u8]>, ConfigError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let end = self.0.iter().position(|b| *b == b'\n').unwrap_or(self.0.len());
        if end >= MAX_LINE {
            return Err(ConfigError::BadEnvFile);
        }
        let (line, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn trim_start(line: &[u8]) -> &[u8] {
    let blanks = line.iter().take_while(|b| is_blank(**b)).count();
    line.get(blanks..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn value_without_a_quote_round_trips(before in "[^'\r]*", text in "[^'\r]*") {
            let file = format!("A='{before}'\nK='{text}'\n");
            prop_assert_eq!(value(file.as_bytes(), "K"), Ok(text.into_bytes()));
        }

        #[test]
        fn arbitrary_content_does_not_panic(content in any::<Vec<u8>>()) {
            let _ = value(&content, "K");
        }
    }

    #[test]
    fn value_is_the_text_between_single_quotes() {
        for (content, want) in [
            ("K='v'", "v"),
            ("  \tK='v' # why", "v"),
            ("# K='no'\n\n \nK='v'\r\n", "v"),
            ("A='1'\nK='v'\nK='later'", "v"),
            ("K='a\r\n  b\n'", "a\n  b\n"),
            ("A='\nK=x\n'\nK='v'", "v"),
            ("K='$(X) \"q\" \\n'", "$(X) \"q\" \\n"),
            ("K=''", ""),
            ("K= 'v'", ""),
            ("A= 'v'\nK='v'", "v"),
            ("A='1'", ""),
            ("", ""),
            ("K='v'\nnonsense after it", "v"),
        ] {
            let got = value(content.as_bytes(), "K").map(|v| String::from_utf8(v).unwrap());
            assert_eq!(got.as_deref(), Ok(want), "{content:?}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("A='{}'\nK='v'", "x".repeat(MAX_LINE));
        for content in [
            "K=v",
            "K=\"v\"",
            "K='v",
            "K='v'x",
            "K ='v'",
            "='v'",
            "K",
            "export K",
            "A=1\nK='v'",
            &long,
        ] {
            assert_eq!(value(content.as_bytes(), "K"), Err(ConfigError::BadEnvFile), "{content:?}");
        }
    }
}
