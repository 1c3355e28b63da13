//! Interactive session with a command: waits for output, then writes input.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::wait;

/// A command with open standard input. It is killed on drop.
pub struct InteractiveCommand {
    name: String,
    child: Child,
    input: ChildStdin,
    /// Both output streams, as they arrive.
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl InteractiveCommand {
    pub fn begin(mut command: Command) -> Result<Self> {
        let name = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {name}"))?;
        let output: Arc<Mutex<Vec<u8>>> = Arc::default();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        let readers = outputs.into_iter().flatten().map(|pipe| {
            let output = output.clone();
            thread::spawn(move || collect(pipe, &output))
        });
        let readers = readers.collect();
        let input = child.stdin.take().context("the command has no standard input")?;
        Ok(Self { name, child, input, output, readers })
    }

    /// The whole output so far.
    pub fn output(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&output).into_owned()
    }

    pub fn send(&mut self, words: &str) -> Result<()> {
        self.input.write_all(words.as_bytes()).with_context(|| format!("writing to {}", self.name))
    }

    /// Waits for this output; fails immediately if the command exits first.
    pub async fn until(&mut self, words: &str, limit: Duration) -> Result<()> {
        let what = format!("{words:?} of {}", self.name);
        let received = async || {
            let ended = self.child.try_wait()?;
            let all_read = self.readers.iter().all(thread::JoinHandle::is_finished);
            let output = self.output();
            if output.contains(words) {
                return Ok(Some(Ok(())));
            }
            match ended.filter(|_| all_read) {
                Some(status) => Ok(Some(Err(anyhow!("exited with {status}, output:\n{output}")))),
                None => bail!("output so far:\n{output}"),
            }
        };
        wait::until(&what, limit, received)
            .await
            .flatten()
            .with_context(|| format!("waiting for {what}"))
    }

    /// Waits for the exit; returns the status and the whole output.
    pub async fn end(mut self, limit: Duration) -> Result<(ExitStatus, String)> {
        let what = format!("{} to exit", self.name);
        let ended = async || {
            let all_read = self.readers.iter().all(thread::JoinHandle::is_finished);
            Ok(self.child.try_wait()?.filter(|_| all_read))
        };
        let status = wait::until(what, limit, ended).await?;
        Ok((status, self.output()))
    }
}

impl Drop for InteractiveCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read, output: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count) = pipe.read(&mut buffer) {
        let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { return };
        output.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(piece);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> InteractiveCommand {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        InteractiveCommand::begin(command).unwrap()
    }

    #[tokio::test]
    async fn input_is_sent_after_the_prompt() {
        let mut session = shell("echo name?; read name; echo hello $name; read end; exit 3");
        session.until("name?", MINUTE).await.unwrap();
        session.send("you\n").unwrap();
        session.until("hello you", MINUTE).await.unwrap();
        session.send("end\n").unwrap();
        let (status, output) = session.end(MINUTE).await.unwrap();
        assert_eq!((status.code(), output.as_str()), (Some(3), "name?\nhello you\n"));
    }

    #[tokio::test]
    async fn command_that_exits_without_the_output_fails_at_once() {
        let mut session = shell("echo something else >&2; exit 4");
        let error = format!("{:#}", session.until("words", MINUTE * 60).await.unwrap_err());
        assert!(error.contains("exit status: 4") && error.contains("something else"), "{error}");
    }
}
