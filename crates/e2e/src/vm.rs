//! Virtual machine with systemd and cgroup v2, as on most nodes; the machine that runs the tests
//! may have neither.
//!
//! It is emulated and therefore slow: about 20 seconds from power-on to power-off. It has no
//! network. It gets a second disk with the files of a case, runs the case's script as a systemd
//! service and powers off afterwards. On a busy machine an emulated one may hang permanently,
//! including its kernel; this is detected by silent serial ports, and the machine is restarted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_testkit::report;

use crate::environment::TestEnvironment;
use crate::netns::Host;
use crate::process::{Daemon, last_lines, output};
use crate::tools::provide;

/// The exit status with which a script requests a reboot; afterwards the script runs again.
pub const REBOOT: i32 = 75;

/// The VM is considered hung after this time without output on any serial port. During boot the
/// kernel and systemd print their progress; then there is a pulse every five seconds of the VM's
/// clock. The first pulse took 73 to 101 s in four boots beside two busy loops and builds on two
/// cores, so the pulse alone cannot distinguish a slow boot from a hang.
const HANG_LIMIT: Duration = Duration::from_secs(180);
/// Maximum number of boots.
const TRIES: u32 = 3;

/// Runs the case's script and the pulse.
const RUN: &str = "#!/bin/sh
(while echo; do sleep 5; done) >/dev/ttyS2 2>/dev/null &
exec ./script
";

/// Prefix of the last line of the payload; written by `testbed/vm/payload`.
const END: &str = "\npayload ended with ";

/// A VM that is not started yet.
pub struct Vm {
    script: String,
    files: Vec<(PathBuf, PathBuf)>,
    memory: u32,
    limit: Duration,
}

/// Result of a VM run.
#[derive(Clone, Debug)]
pub struct VmOutcome {
    /// Exit status of the script.
    pub status: i32,
    /// Output of the script, over all its runs.
    pub output: String,
    /// Console output of the kernel and systemd.
    pub console: String,
}

/// Result of one boot.
enum Run {
    Ended(VmOutcome),
    /// The output until then.
    Hung(String),
}

impl Vm {
    /// A VM that runs `script`, a complete file beginning with `#!`. Its working directory is
    /// `/payload`, which also contains the files; containerd, runc, the CNI plugins, iptables and
    /// busybox are installed, and containerd is not started.
    pub fn new(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            files: Vec::new(),
            memory: 1024,
            limit: Duration::from_secs(600),
        }
    }

    /// Adds a file at `name` below /payload, with its permissions.
    pub fn file(mut self, name: impl Into<PathBuf>, source: impl Into<PathBuf>) -> Self {
        self.files.push((name.into(), source.into()));
        self
    }

    /// In MiB; 1024 by default.
    pub fn memory(mut self, mebibytes: u32) -> Self {
        self.memory = mebibytes;
        self
    }

    /// From power-on to power-off; 10 minutes by default.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts it and waits until it powers off.
    pub async fn run(self) -> Result<VmOutcome> {
        let mut hung = String::new();
        for _ in 0..TRIES {
            match self.run_once().await? {
                Run::Ended(outcome) => return Ok(outcome),
                Run::Hung(last_output) => {
                    let seconds = HANG_LIMIT.as_secs();
                    report::retried(&format!(
                        "the VM hung for {seconds} s and was stopped; {last_output}"
                    ));
                    hung = last_output;
                }
            }
        }
        anyhow::bail!("the VM hung {TRIES} times; {hung}");
    }

    async fn run_once(&self) -> Result<Run> {
        let parts = provide("vm")?;
        // QEMU runs in a test environment, so it cannot outlive the test.
        let environment = TestEnvironment::create(Host::Node).await?;
        let payload = environment.path("payload");
        self.pack(&environment.path("files"), &payload)?;
        let files = Files {
            console: environment.path("logs/console.log"),
            output: environment.path("logs/payload.log"),
            pulse: environment.path("logs/pulse.log"),
        };
        let mut command = environment.command("qemu-system-x86_64");
        self.describe(&mut command, &parts, &payload, &files);
        // Temporary disk writes go here.
        command.env("TMPDIR", environment.path(""));
        let machine = environment.daemon("qemu", command)?;
        tokio::select! {
            ended = machine.wait(self.limit) => {
                ended.with_context(|| files.last_output(&machine))?;
            }
            () = files.until_hung() => return Ok(Run::Hung(files.last_output(&machine))),
        }
        files.outcome().map(Run::Ended).with_context(|| files.last_output(&machine))
    }

    /// Creates the second disk.
    fn pack(&self, directory: &Path, disk: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let mut size = 64 << 20; // space for the script's output
        for (name, source) in &self.files {
            let target = directory.join(name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            size += fs::copy(source, &target)
                .with_context(|| format!("packing {} for the VM", source.display()))?;
        }
        for (name, text) in [("run", RUN), ("script", self.script.as_str())] {
            let program = directory.join(name);
            fs::write(&program, text)?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        }
        let kibibytes = format!("{}k", size / 1024 * 5 / 4);
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-t", "ext4", "-d"]).arg(directory).arg(disk).arg(kibibytes);
        output(&mut command)?;
        Ok(())
    }

    fn describe(&self, qemu: &mut Command, parts: &Path, payload: &Path, files: &Files) {
        let disk = |path: &Path, options: &str| {
            format!("file={},format=raw,if=virtio{options}", path.display())
        };
        let serial = |path: &Path| format!("file:{}", path.display());
        // The simplest CPU is the fastest to emulate. Only one: two that wait for each other have
        // hung on a busy host.
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "1"])
            .args(["-m", &self.memory.to_string()])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none"])
            .arg("-kernel")
            .arg(parts.join("vmlinuz"))
            .arg("-initrd")
            .arg(parts.join("initrd"))
            .args(["-append", "root=/dev/vda rw console=ttyS0 mitigations=off"])
            .args(["-drive", &disk(&parts.join("disk"), ",snapshot=on")])
            .args(["-drive", &disk(payload, "")])
            .args(["-serial", &serial(&files.console)])
            .args(["-serial", &serial(&files.output)])
            .args(["-serial", &serial(&files.pulse)]);
    }
}

/// Output files of the serial ports.
struct Files {
    console: PathBuf,
    output: PathBuf,
    pulse: PathBuf,
}

impl Files {
    /// Returns when there was no output for too long.
    async fn until_hung(&self) {
        let (mut received, mut since) = ([0; 3], Instant::now());
        while since.elapsed() < HANG_LIMIT {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = [&self.console, &self.output, &self.pulse]
                .map(|port| fs::metadata(port).map_or(0, |about| about.len()));
            if now != received {
                (received, since) = (now, Instant::now());
            }
        }
    }

    fn outcome(&self) -> Result<VmOutcome> {
        let console = text(&self.console)?;
        let printed = text(&self.output)?;
        let (output, status) = printed.rsplit_once(END).context("the script did not finish")?;
        let status = status.trim().parse().context("the script has no exit status")?;
        Ok(VmOutcome { status, output: output.to_owned(), console })
    }

    fn last_output(&self, machine: &Daemon) -> String {
        let end = |path| last_lines(&text(path).unwrap_or_default(), 20);
        format!(
            "output of the VM:\n{}\nconsole:\n{}\nscript:\n{}",
            last_lines(&machine.log(), 5),
            end(&self.console),
            end(&self.output)
        )
    }
}

fn text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
