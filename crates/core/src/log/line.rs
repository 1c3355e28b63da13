//! One line of a log file, in CRI or Docker format.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `<time> <stream> <P|F>[:tag…] <text>`
    Cri,
    /// One JSON object per line, written by Docker; nodes migrated from Docker still have such
    /// logs.
    DockerJson,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub time: Timestamp,
    time_text: Cow<'a, str>,
    pub stream: Stream,
    /// The line continues with the next one of its stream.
    pub partial: bool,
    /// Without newline.
    pub text: Cow<'a, [u8]>,
}

#[derive(Deserialize)]
struct DockerLine<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
    #[serde(borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

impl<'a> Line<'a> {
    /// Parses a line and detects its format.
    pub fn recognise(raw: &'a [u8]) -> Option<(Format, Self)> {
        let as_format = |format| Some((format, Self::parse(raw, format)?));
        as_format(Format::Cri).or_else(|| as_format(Format::DockerJson))
    }

    pub fn parse(raw: &'a [u8], format: Format) -> Option<Self> {
        let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
        match format {
            Format::Cri => Self::parse_cri(raw),
            Format::DockerJson => Self::parse_docker(raw),
        }
    }

    fn parse_cri(raw: &'a [u8]) -> Option<Self> {
        let mut parts = raw.splitn(4, |byte| *byte == b' ');
        let time_text = std::str::from_utf8(parts.next()?).ok()?;
        let stream = Stream::parse(parts.next()?)?;
        let tag = parts.next()?.split(|byte| *byte == b':').next()?;
        let text = parts.next()?;
        Some(Self {
            time: time_text.parse().ok()?,
            time_text: time_text.into(),
            stream,
            partial: tag == b"P",
            text: text.into(),
        })
    }

    fn parse_docker(raw: &'a [u8]) -> Option<Self> {
        let DockerLine { log, stream, time } = serde_json::from_slice(raw).ok()?;
        let partial = !log.ends_with('\n');
        let text = match log {
            Cow::Borrowed(text) => Cow::Borrowed(text.trim_end_matches('\n').as_bytes()),
            Cow::Owned(mut text) => {
                text.truncate(text.trim_end_matches('\n').len());
                Cow::Owned(text.into_bytes())
            }
        };
        Some(Self {
            time: time.parse().ok()?,
            time_text: time,
            stream: Stream::parse(stream.as_bytes())?,
            partial,
            text,
        })
    }

    /// Timestamp as written in the log, in its own time zone, with nine digits of fraction.
    pub fn time_in_nanoseconds(&self) -> String {
        let text = &*self.time_text;
        let zone = text.find('T').and_then(|t| {
            let clock = text.get(t..)?;
            Some(t + clock.find(['Z', 'z', '+', '-'])?)
        });
        let (clock, zone) = text.split_at(zone.unwrap_or(text.len()));
        let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
        format!("{seconds}.{fraction:0<9.9}{zone}")
    }
}
