//! Process of a user, in the bed's network namespace and in its own cgroup.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};

use crate::environment::TestEnvironment;
use crate::leftovers::MARK;
use crate::machine::start_time;

/// Its name in a process list.
const NAME: &str = "user-database";

pub(super) struct UserProcess {
    cgroup: String,
    directories: Vec<PathBuf>,
    pid: u32,
    started: String,
    child: Mutex<Child>,
}

impl UserProcess {
    /// Starts one in the cgroup `below` the bed's, in every hierarchy.
    pub(super) fn start(environment: &TestEnvironment, below: &str) -> Result<Self> {
        let failed = || format!("bystander: starting a process in the cgroup {below}");
        let program = environment.path(NAME);
        if !program.exists() {
            std::os::unix::fs::symlink("/bin/sleep", &program).with_context(failed)?;
        }
        let cgroup = environment.cgroup().child(below)?;
        let files = environment.cgroup().procs_files(below);
        // The shell execs the program, so the pid stays the same.
        let script = r#"program=$0
            for file; do echo 0 >"$file" || exit 1; done
            echo enrolled; exec "$program" infinity >/dev/null"#;
        let mut command = environment.netns().command("sh");
        command.args(["-c", script]).arg(&program).args(&files).env(MARK, environment.id());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(failed)?;
        let mut output = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut output).with_context(failed)?;
        }
        let pid = child.id();
        let started = start_time(Path::new(&format!("/proc/{pid}"))).unwrap_or_default();
        let process = Self {
            cgroup,
            directories: files
                .iter()
                .filter_map(|file| file.parent().map(Path::to_owned))
                .collect(),
            pid,
            started,
            child: Mutex::new(child),
        };
        ensure!(output.trim() == "enrolled", "{}: output {output:?}", failed());
        Ok(process)
    }

    pub(super) fn damage(&self) -> Vec<String> {
        let Self { cgroup, pid, .. } = self;
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let alive = fs::read_link(proc.join("exe")).is_ok();
        if !alive || start_time(&proc).as_ref() != Some(&self.started) {
            return vec![format!(
                "process {pid}: a user's {NAME} in the cgroup {cgroup} was killed"
            )];
        }
        let mut damage = Vec::new();
        let table = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
        let inside = table.lines().filter(|line| line.ends_with(cgroup.as_str())).count();
        if inside != self.directories.len() {
            damage.push(format!(
                "process {pid}: a user's {NAME} was moved out of {cgroup}:\n{table}"
            ));
        }
        let frozen = |directory: &PathBuf| {
            let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
            read("freezer.state").trim() == "FROZEN" || read("cgroup.freeze").trim() == "1"
        };
        if self.directories.iter().any(frozen) {
            damage.push(format!("process {pid}: a user's cgroup {cgroup} was frozen"));
        }
        damage
    }
}

impl Drop for UserProcess {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}
