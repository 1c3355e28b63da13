//! Scripts: predefined behaviour of the program in a container.

use std::time::Duration;

/// Behaviour of a container's program. Each start of the container plays the next run; the last one
/// repeats.
#[derive(Clone, Debug)]
pub struct Script {
    pub(super) runs: Vec<Run>,
    pub(super) prints: Vec<String>,
    pub(super) writes: Vec<(String, String)>,
    pub(super) execs: Vec<(Vec<String>, ExecReply)>,
    pub(super) usage: Usage,
}

/// One run, from start to exit.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) begins: Begin,
    /// Without: it runs until it is killed.
    pub(super) ends: Option<(Duration, End)>,
    pub(super) on_term: OnTerm,
}

#[derive(Clone, Debug)]
pub(super) enum Begin {
    Starts,
    /// The program cannot be started: no such file, bad working directory and the like.
    Refuses(String),
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) code: i32,
    pub(super) oom: bool,
}

impl End {
    pub(super) fn code(code: i32) -> Self {
        Self { code, oom: false }
    }

    pub(super) fn killed() -> Self {
        Self::code(137)
    }

    pub(super) fn out_of_memory() -> Self {
        Self { code: 137, oom: true }
    }
}

/// Reaction of a program to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    Exits { after: Duration, code: i32 },
    Ignores,
}

/// Behaviour of an exec command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecReply {
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
    pub takes: Duration,
}

impl ExecReply {
    pub fn exits(exit_code: i32) -> Self {
        Self { exit_code, ..Self::default() }
    }

    pub fn printing(mut self, stdout: impl Into<String>) -> Self {
        self.stdout = stdout.into();
        self
    }

    pub fn taking(mut self, takes: Duration) -> Self {
        self.takes = takes;
        self
    }
}

/// Resource usage of a running program, for the stats calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub millicores: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { millicores: 1, memory_bytes: 1 << 20, disk_bytes: 4 << 10 }
    }
}

impl Script {
    /// Runs until it is stopped, and then exits at once, with code 0.
    pub fn forever() -> Self {
        Self::one(Begin::Starts, None)
    }

    /// Exits by itself.
    pub fn exits(code: i32, after: Duration) -> Self {
        Self::one(Begin::Starts, Some((after, End::code(code))))
    }

    /// Fails every time, this long after its start.
    pub fn crash_loop(after: Duration) -> Self {
        Self::exits(1, after)
    }

    /// Fails the first time and then keeps running.
    pub fn crashes_once(after: Duration) -> Self {
        Self::crash_loop(after).then(Self::forever())
    }

    /// Exceeds its memory limit.
    pub fn runs_out_of_memory(after: Duration) -> Self {
        Self::one(Begin::Starts, Some((after, End::out_of_memory())))
    }

    /// StartContainer fails with this message, and the container is left exited: code 128, reason
    /// `StartError`.
    pub fn refuses_to_start(message: impl Into<String>) -> Self {
        Self::one(Begin::Refuses(message.into()), None)
    }

    fn one(begins: Begin, ends: Option<(Duration, End)>) -> Self {
        let on_term = OnTerm::Exits { after: Duration::ZERO, code: 0 };
        Self {
            runs: vec![Run { begins, ends, on_term }],
            prints: Vec::new(),
            writes: Vec::new(),
            execs: Vec::new(),
            usage: Usage::default(),
        }
    }

    /// Runs that follow those of `self`. Only the runs of `next` count.
    pub fn then(mut self, next: Self) -> Self {
        self.runs.extend(next.runs);
        self
    }

    /// Reaction to SIGTERM of every run so far.
    pub fn on_sigterm(mut self, on_term: OnTerm) -> Self {
        for run in &mut self.runs {
            run.on_term = on_term;
        }
        self
    }

    pub fn ignoring_sigterm(self) -> Self {
        self.on_sigterm(OnTerm::Ignores)
    }

    /// A line on standard output at each start, if the fake may write files.
    pub fn prints(mut self, line: impl Into<String>) -> Self {
        self.prints.push(line.into());
        self
    }

    /// A file written just before each exit, if a mount leads there and the fake may write it.
    pub fn writes(mut self, container_path: impl Into<String>, text: impl Into<String>) -> Self {
        self.writes.push((container_path.into(), text.into()));
        self
    }

    /// Result of an exec command; one without a script succeeds without output.
    pub fn exec(mut self, command: &[&str], reply: ExecReply) -> Self {
        self.execs.push((command.iter().map(|&word| word.to_owned()).collect(), reply));
        self
    }

    pub fn using(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// The run of the `n`th start, counted from zero.
    pub(super) fn run(&self, n: u32) -> Run {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let run = self.runs.get(n).or(self.runs.last());
        run.cloned().unwrap_or(Run { begins: Begin::Starts, ends: None, on_term: OnTerm::Ignores })
    }

    pub(super) fn reply_to(&self, command: &[String]) -> ExecReply {
        let known = self.execs.iter().find(|(words, _)| words == command);
        known.map(|(_, reply)| reply.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_start_plays_the_next_run_and_the_last_repeats() {
        let script =
            Script::exits(3, SECOND).then(Script::crash_loop(SECOND)).then(Script::forever());
        let codes: Vec<Option<i32>> =
            (0..5).map(|n| script.run(n).ends.map(|(_, end)| end.code)).collect();
        assert_eq!(codes, [Some(3), Some(1), None, None, None]);
    }

    #[test]
    fn the_reaction_to_sigterm_is_that_of_the_runs_before_it() {
        let script = Script::forever().ignoring_sigterm().then(Script::forever());
        assert_eq!(script.run(0).on_term, OnTerm::Ignores);
        assert_eq!(script.run(1).on_term, OnTerm::Exits { after: Duration::ZERO, code: 0 });
    }

    #[test]
    fn command_without_script_succeeds() {
        let script = Script::forever().exec(&["cat", "/ready"], ExecReply::exits(1));
        let reply = |words: &[&str]| {
            script.reply_to(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(reply(&["cat", "/ready"]).exit_code, 1);
        assert_eq!(reply(&["true"]), ExecReply::default());
    }
}
