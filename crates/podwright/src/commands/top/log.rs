//! Log of a container: read from the agent in a task, kept in a bounded buffer.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::commands::why::agent::Agent;
use crate::printable::printable;

/// Lines that are kept, and the characters of one.
const LINES: usize = 2_000;
const LINE: usize = 2_000;
/// Lines that are read at first.
const TAIL: usize = 500;

/// Which log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogSource {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// The instance before the current one.
    pub(super) previous: bool,
    pub(super) follow: bool,
    /// Tells this reading from an earlier one whose last pieces may still arrive.
    pub(super) number: u64,
}

/// Something new of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogPiece {
    pub(super) number: u64,
    pub(super) content: LogContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogContent {
    Bytes(Vec<u8>),
    /// The end, with the reason if it is not simply the end.
    End(Option<String>),
}

/// A task that reads a log; dropping it ends the reading.
pub(super) struct LogReader {
    _task: AbortOnDropHandle<()>,
}

impl LogReader {
    pub(super) fn start(agent: Agent, source: LogSource, pieces: mpsc::Sender<LogPiece>) -> Self {
        let task = tokio::spawn(async move {
            let number = source.number;
            let content = read(&agent, &source, &pieces).await;
            let end = LogContent::End(content.err().map(|error| format!("{error:#}")));
            // The view may be gone.
            let _ = pieces.send(LogPiece { number, content: end }).await;
        });
        Self { _task: AbortOnDropHandle::new(task) }
    }
}

async fn read(
    agent: &Agent,
    source: &LogSource,
    pieces: &mpsc::Sender<LogPiece>,
) -> anyhow::Result<()> {
    let mut stream = agent.stream(&source.path()?).await?;
    while let Some(bytes) = stream.next().await? {
        let content = LogContent::Bytes(bytes.to_vec());
        if pieces.send(LogPiece { number: source.number, content }).await.is_err() {
            break;
        }
    }
    Ok(())
}

impl LogSource {
    fn path(&self) -> anyhow::Result<String> {
        let Self { namespace, pod, container, previous, follow, .. } = self;
        // They are names by the rules of the API; anything else would change the request.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if ![namespace, pod, container].iter().all(|name| name.chars().all(plain)) {
            anyhow::bail!("this container has no valid name");
        }
        Ok(format!(
            "/kubelet/containerLogs/{namespace}/{pod}/{container}?tailLines={TAIL}&follow={follow}\
             &previous={previous}"
        ))
    }
}

/// The last lines of a log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogBuffer {
    lines: VecDeque<String>,
    /// The last line is not complete.
    open: Vec<u8>,
    pub(super) end: Option<String>,
}

impl LogBuffer {
    pub(super) fn push(&mut self, content: LogContent) {
        match content {
            LogContent::Bytes(bytes) => {
                for byte in bytes {
                    match byte {
                        b'\n' => self.finish_line(),
                        // An overlong line is cut; what is left of it is not kept.
                        _ if self.open.len() >= LINE * 4 => {}
                        byte => self.open.push(byte),
                    }
                }
            }
            LogContent::End(reason) => {
                if !self.open.is_empty() {
                    self.finish_line();
                }
                self.end = Some(reason.unwrap_or_else(|| "end of the log".to_owned()));
            }
        }
    }

    fn finish_line(&mut self) {
        let raw = std::mem::take(&mut self.open);
        let text = String::from_utf8_lossy(&raw);
        let text = text.trim_end_matches('\r').replace('\t', "    ");
        let cut: String = text.chars().take(LINE).collect();
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(printable(&cut).into_owned());
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn lines(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: impl AsRef<[u8]>) -> LogContent {
        LogContent::Bytes(text.as_ref().to_vec())
    }

    #[test]
    fn log_is_split_into_lines_and_neutralised() {
        let mut log = LogBuffer::default();
        log.push(bytes("one\ntw"));
        log.push(bytes("o\r\n\u{1b}[2J\u{1b}]0;owned\u{7}\tx\n"));
        log.push(bytes(b"\xff\xfe end"));
        assert_eq!(log.lines().collect::<Vec<_>>()[..2], ["one", "two"]);
        log.push(LogContent::End(None));
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines[2], "\\u{1b}[2J\\u{1b}]0;owned\\u{7}    x");
        assert_eq!(lines[3], "\u{fffd}\u{fffd} end");
        assert_eq!(log.end.as_deref(), Some("end of the log"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut log = LogBuffer::default();
        for _ in 0..100 {
            log.push(bytes(vec![b'x'; 1 << 16]));
        }
        assert!(log.open.len() <= LINE * 4);
        log.push(bytes("\n"));
        assert_eq!(log.lines().next().map(str::len), Some(LINE));
        for number in 0..LINES * 3 {
            log.push(bytes(format!("{number}\n")));
        }
        assert_eq!(log.len(), LINES);
        assert_eq!(log.lines().next_back(), Some("5999"));
    }

    #[test]
    fn names_that_would_change_the_request_are_refused() {
        let source = |pod: &str| LogSource {
            namespace: "default".into(),
            pod: pod.into(),
            container: "app".into(),
            previous: true,
            follow: false,
            number: 1,
        };
        let path = source("web-1").path().ok();
        let want =
            "/kubelet/containerLogs/default/web-1/app?tailLines=500&follow=false&previous=true";
        assert_eq!(path.as_deref(), Some(want));
        for name in ["a/b", "a?b", "a b", "a#b", "a\nb"] {
            assert!(source(name).path().is_err(), "{name:?}");
        }
    }
}
