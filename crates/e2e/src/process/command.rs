//! Commands that run to completion, each with a hard time limit: a hanging command is killed with
//! its whole process group, and the error names it.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::case;

/// Default time limit of a command.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// Time limit for output that stays open after the command exited, held by a process it started.
const OUTPUT_LIMIT: Duration = Duration::from_secs(30);

/// Standard input of a command.
#[derive(Clone, Copy, Debug)]
pub enum Stdin<'a> {
    /// This, then end of file.
    Ends(&'a [u8]),
    /// This, and no end of file before the command exits.
    StaysOpen(&'a [u8]),
}

/// Runs a command to completion and returns its output; an error contains its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    output_of(command, b"")
}

/// Like [`output`], with standard input.
pub fn output_of(command: &mut Command, input: &[u8]) -> Result<String> {
    let output = run(command, Stdin::Ends(input), COMMAND_LIMIT)?;
    if !output.status.success() {
        bail!("{command:?} exited with {}:\n{}", output.status, everything(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Both output streams as text.
pub fn everything(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Runs a command to completion with any exit status. It is an error if it takes longer than
/// `limit`.
pub fn run(command: &mut Command, stdin: Stdin<'_>, limit: Duration) -> Result<Output> {
    let _waiting = case::waiting_for(format!("{command:?}"));
    let deadline = Instant::now() + limit;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0) // so that its children can be killed with it
        .spawn()
        .with_context(|| format!("running {command:?}"))?;
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let pipe = child.stdin.take();
    let (input, stays) = match stdin {
        Stdin::Ends(input) => (input.to_owned(), false),
        Stdin::StaysOpen(input) => (input.to_owned(), true),
    };
    let writing = thread::spawn(move || {
        let mut pipe = pipe;
        if let Some(pipe) = &mut pipe {
            // A program need not read its input.
            let _ = pipe.write_all(&input);
        }
        stays.then_some(pipe)
    });
    let Some(status) = wait_until(&mut child, deadline)? else {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        let printed = [&stdout, &stderr].map(|stream| stream.recv_timeout(OUTPUT_LIMIT));
        let printed =
            printed.map(|bytes| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned());
        bail!(
            "{command:?} did not exit within {} s and was killed:\n{}",
            limit.as_secs_f32(),
            printed.concat()
        );
    };
    let [stdout, stderr] = [stdout, stderr].map(|stream| stream.recv_timeout(OUTPUT_LIMIT));
    drop(writing.join());
    let open = || format!("{command:?} exited with {status}, but its output stayed open");
    Ok(Output { status, stdout: stdout.with_context(open)?, stderr: stderr.with_context(open)? })
}

/// Everything from a pipe until end of file.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = send.send(bytes);
    });
    receive
}

/// The exit status of a child; `None` if it is still running at the deadline.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        let pause =
            (began.elapsed() / 20).clamp(Duration::from_millis(2), Duration::from_millis(50));
        thread::sleep(pause);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::wait;

    const SECOND: Duration = Duration::from_secs(1);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn hanging_command_is_killed_with_its_children_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("tail -f /dev/null & echo $! >{}; echo early; wait", file.display());
        let error = run(&mut shell(&script), Stdin::Ends(b""), SECOND).unwrap_err().to_string();
        assert!(error.contains("did not exit within 1 s and was killed"), "{error}");
        assert!(error.contains("tail -f") && error.contains("early"), "{error}");
        let child = std::fs::read_to_string(file).unwrap();
        // An orphan takes a moment to exit, and may then wait to be reaped.
        let ended = async || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            Ok(state.map_or(true, |state| state.contains(") Z ")))
        };
        wait::until_true("the command's child to end", SECOND * 60, ended).await.unwrap();
    }

    #[test]
    fn failure_contains_the_output() {
        let error =
            output(&mut shell("echo here; echo there >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("here\nthere") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn input_ends_or_stays_open_as_requested() {
        let ended = run(&mut shell("cat"), Stdin::Ends(b"word"), SECOND * 60).unwrap();
        assert_eq!(ended.stdout, b"word");
        let open =
            run(&mut shell("read -r word; echo $word"), Stdin::StaysOpen(b"word\n"), SECOND * 60);
        assert_eq!(open.unwrap().stdout, b"word\n");
        let hangs = run(&mut shell("exec cat"), Stdin::StaysOpen(b"word\n"), SECOND).unwrap_err();
        assert!(hangs.to_string().contains("word"), "{hangs}");
    }
}
