//! Commands that run to their end, each with a hard time limit: a command that hangs is killed
//! together with everything it started in its process group, and the error names it.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::case;

/// How long a command may take unless the caller says something else.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// How long output may stay open after the command ended, because something it started has it.
const OUTPUT_LIMIT: Duration = Duration::from_secs(30);

/// What a command reads.
#[derive(Clone, Copy, Debug)]
pub enum Stdin<'a> {
    /// This, and then the end.
    Ends(&'a [u8]),
    /// This, and no end before the command ends.
    StaysOpen(&'a [u8]),
}

/// Runs a command to its end and returns what it printed; its failure carries what it complained
/// about.
pub fn output(command: &mut Command) -> Result<String> {
    output_of(command, b"")
}

/// Like [`output`], with something on its standard input.
pub fn output_of(command: &mut Command, input: &[u8]) -> Result<String> {
    let output = run(command, Stdin::Ends(input), COMMAND_LIMIT)?;
    if !output.status.success() {
        bail!("{command:?} ended with {}:\n{}", output.status, everything(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Both streams as text.
pub fn everything(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Runs a command to its end, however it ends. It is an error if that takes longer than `limit`.
pub fn run(command: &mut Command, stdin: Stdin<'_>, limit: Duration) -> Result<Output> {
    let _waiting = case::waiting_for(format!("{command:?}"));
    let deadline = Instant::now() + limit;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0) // so that what it starts can be ended with it
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
            // A program need not read what it is offered.
            let _ = pipe.write_all(&input);
        }
        stays.then_some(pipe)
    });
    let Some(status) = wait_until(&mut child, deadline)? else {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        let said = [&stdout, &stderr].map(|stream| stream.recv_timeout(OUTPUT_LIMIT));
        let said =
            said.map(|bytes| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned());
        bail!(
            "{command:?} did not end in {} s and was killed:\n{}",
            limit.as_secs_f32(),
            said.concat()
        );
    };
    let [stdout, stderr] = [stdout, stderr].map(|stream| stream.recv_timeout(OUTPUT_LIMIT));
    drop(writing.join());
    let open = || format!("{command:?} ended with {status}, and its output stayed open");
    Ok(Output { status, stdout: stdout.with_context(open)?, stderr: stderr.with_context(open)? })
}

/// Everything that comes out of a pipe, once it has ended.
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

/// How a child ended; `None` if it did not until then.
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
    async fn command_that_hangs_is_killed_with_its_children_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("tail -f /dev/null & echo $! >{}; echo early; wait", file.display());
        let error = run(&mut shell(&script), Stdin::Ends(b""), SECOND).unwrap_err().to_string();
        assert!(error.contains("did not end in 1 s and was killed"), "{error}");
        assert!(error.contains("tail -f") && error.contains("early"), "{error}");
        let child = std::fs::read_to_string(file).unwrap();
        // An orphan takes a moment to end, and may then wait for its exit status to be collected.
        let ended = async || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            Ok(state.map_or(true, |state| state.contains(") Z ")))
        };
        wait::until_true("the command's child to end", SECOND * 60, ended).await.unwrap();
    }

    #[test]
    fn failure_carries_what_was_printed() {
        let error =
            output(&mut shell("echo here; echo there >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("here\nthere") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn input_ends_or_stays_open_as_asked() {
        let ended = run(&mut shell("cat"), Stdin::Ends(b"word"), SECOND * 60).unwrap();
        assert_eq!(ended.stdout, b"word");
        let open =
            run(&mut shell("read -r word; echo $word"), Stdin::StaysOpen(b"word\n"), SECOND * 60);
        assert_eq!(open.unwrap().stdout, b"word\n");
        let hangs = run(&mut shell("exec cat"), Stdin::StaysOpen(b"word\n"), SECOND).unwrap_err();
        assert!(hangs.to_string().contains("word"), "{hangs}");
    }
}
