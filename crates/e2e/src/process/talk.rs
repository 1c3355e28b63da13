//! A talk with a command: what it says next can be waited for, and then answered.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::wait;

/// A command whose input stays open. It is killed when this is dropped.
pub struct Talk {
    name: String,
    child: Child,
    input: ChildStdin,
    /// Both of its outputs, as they come.
    said: Arc<Mutex<Vec<u8>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Talk {
    pub fn begin(mut command: Command) -> Result<Self> {
        let name = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {name}"))?;
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        let readers = outputs.into_iter().flatten().map(|pipe| {
            let said = said.clone();
            thread::spawn(move || collect(pipe, &said))
        });
        let readers = readers.collect();
        let input = child.stdin.take().context("a command has an input")?;
        Ok(Self { name, child, input, said, readers })
    }

    /// Everything it said so far.
    pub fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }

    pub fn say(&mut self, words: &str) -> Result<()> {
        self.input.write_all(words.as_bytes()).with_context(|| format!("writing to {}", self.name))
    }

    /// Waits until it has said this; fails at once if it ends before.
    pub async fn until(&mut self, words: &str, limit: Duration) -> Result<()> {
        let what = format!("{words:?} of {}", self.name);
        let heard = async || {
            let ended = self.child.try_wait()?;
            let all_read = self.readers.iter().all(thread::JoinHandle::is_finished);
            let said = self.said();
            if said.contains(words) {
                return Ok(Some(Ok(())));
            }
            match ended.filter(|_| all_read) {
                Some(status) => Ok(Some(Err(anyhow!("it ended with {status} and said:\n{said}")))),
                None => bail!("it said:\n{said}"),
            }
        };
        wait::until(&what, limit, heard)
            .await
            .flatten()
            .with_context(|| format!("waiting for {what}"))
    }

    /// Waits for its end; returns how it ended and all that it said.
    pub async fn end(mut self, limit: Duration) -> Result<(ExitStatus, String)> {
        let what = format!("the end of {}", self.name);
        let ended = async || {
            let all_read = self.readers.iter().all(thread::JoinHandle::is_finished);
            Ok(self.child.try_wait()?.filter(|_| all_read))
        };
        let status = wait::until(what, limit, ended).await?;
        Ok((status, self.said()))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read, said: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count) = pipe.read(&mut buffer) {
        let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { return };
        said.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(piece);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Talk {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Talk::begin(command).unwrap()
    }

    #[tokio::test]
    async fn command_is_answered_when_it_was_heard() {
        let mut talk = shell("echo name?; read name; echo hello $name; read end; exit 3");
        talk.until("name?", MINUTE).await.unwrap();
        talk.say("you\n").unwrap();
        talk.until("hello you", MINUTE).await.unwrap();
        talk.say("end\n").unwrap();
        let (status, said) = talk.end(MINUTE).await.unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(3), "name?\nhello you\n"));
    }

    #[tokio::test]
    async fn command_that_ends_without_the_words_fails_at_once() {
        let mut talk = shell("echo something else >&2; exit 4");
        let error = format!("{:#}", talk.until("words", MINUTE * 60).await.unwrap_err());
        assert!(error.contains("exit status: 4") && error.contains("something else"), "{error}");
    }
}
