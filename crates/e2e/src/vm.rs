//! A small machine with systemd and cgroup v2, which is what most nodes have and the machine that
//! runs the tests may not.
//!
//! It is emulated, so it is slow: some 20 seconds from power-on to power-off. It has no network. It
//! gets a second disk with the files of a case, runs the case's script as a systemd service and
//! ends with it. On a busy machine an emulated one may stand still for good, kernel and all; it is
//! told by that nothing comes from its serial ports, and switched off and on again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_testkit::report;

use crate::ground::Ground;
use crate::netns::Host;
use crate::process::{Daemon, last_lines, output};
use crate::tools::provide;

/// The status with which a script asks for a reboot; after it the script runs again.
pub const REBOOT: i32 = 75;

/// Without a byte on any serial port for so long it stands still. While it boots the kernel and
/// systemd say what they do; then there is a pulse, every five seconds of the machine's own. The
/// first pulse took 73 to 101 s in four boots beside two busy loops and builds on two cores, so the
/// pulse alone cannot tell a slow boot from a machine that stands still.
const STILL: Duration = Duration::from_secs(180);
/// How often it is switched on at most.
const TRIES: u32 = 3;

/// Runs the case's script, and the pulse beside it.
const RUN: &str = "#!/bin/sh
(while echo; do sleep 5; done) >/dev/ttyS2 2>/dev/null &
exec ./script
";

/// How the last line of the payload begins; `testbed/vm/payload` writes it.
const END: &str = "\npayload ended with ";

/// A machine yet to be switched on.
pub struct Vm {
    script: String,
    files: Vec<(PathBuf, PathBuf)>,
    memory: u32,
    limit: Duration,
}

/// How it went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the script ended with.
    pub status: i32,
    /// What the script printed, of all its runs.
    pub output: String,
    /// What kernel and systemd said.
    pub console: String,
}

/// How one try ended.
enum Run {
    Ended(Outcome),
    /// What was heard of it until then.
    StoodStill(String),
}

impl Vm {
    /// A machine that runs `script`, a whole file that begins with `#!`. Its working folder is
    /// `/payload`, where the files are too; containerd, runc, the CNI plugins, iptables and busybox
    /// are installed, and containerd is not started.
    pub fn new(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            files: Vec::new(),
            memory: 1024,
            limit: Duration::from_secs(600),
        }
    }

    /// Puts a file at `name` below /payload, with its permissions.
    pub fn file(mut self, name: impl Into<PathBuf>, source: impl Into<PathBuf>) -> Self {
        self.files.push((name.into(), source.into()));
        self
    }

    /// In MiB; 1024 unless told.
    pub fn memory(mut self, mebibytes: u32) -> Self {
        self.memory = mebibytes;
        self
    }

    /// From power-on to power-off; 10 minutes unless told.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Switches it on and waits until it is off again.
    pub async fn run(self) -> Result<Outcome> {
        let mut stood_still = String::new();
        for _ in 0..TRIES {
            match self.run_once().await? {
                Run::Ended(outcome) => return Ok(outcome),
                Run::StoodStill(last_words) => {
                    let seconds = STILL.as_secs();
                    report::retried(&format!(
                        "the VM stood still for {seconds} s and was switched off; {last_words}"
                    ));
                    stood_still = last_words;
                }
            }
        }
        anyhow::bail!("the VM stood still {TRIES} times; {stood_still}");
    }

    async fn run_once(&self) -> Result<Run> {
        let parts = provide("vm")?;
        // The machine is a program of a bed's ground, so it cannot outlive the test.
        let ground = Ground::claim(Host::Node).await?;
        let payload = ground.path("payload");
        self.pack(&ground.path("files"), &payload)?;
        let files = Files {
            console: ground.path("logs/console.log"),
            output: ground.path("logs/payload.log"),
            pulse: ground.path("logs/pulse.log"),
        };
        let mut command = ground.command("qemu-system-x86_64");
        self.describe(&mut command, &parts, &payload, &files);
        // What it does not write back to the disk goes here.
        command.env("TMPDIR", ground.path(""));
        let machine = ground.daemon("qemu", command)?;
        tokio::select! {
            ended = machine.wait(self.limit) => {
                ended.with_context(|| files.last_words(&machine))?;
            }
            () = files.stands_still() => return Ok(Run::StoodStill(files.last_words(&machine))),
        }
        files.outcome().map(Run::Ended).with_context(|| files.last_words(&machine))
    }

    /// Makes the second disk.
    fn pack(&self, folder: &Path, disk: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let mut size = 64 << 20; // room for what the script writes
        for (name, source) in &self.files {
            let target = folder.join(name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            size += fs::copy(source, &target)
                .with_context(|| format!("packing {} for the VM", source.display()))?;
        }
        for (name, text) in [("run", RUN), ("script", self.script.as_str())] {
            let program = folder.join(name);
            fs::write(&program, text)?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        }
        let kibibytes = format!("{}k", size / 1024 * 5 / 4);
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-t", "ext4", "-d"]).arg(folder).arg(disk).arg(kibibytes);
        output(&mut command)?;
        Ok(())
    }

    fn describe(&self, qemu: &mut Command, parts: &Path, payload: &Path, files: &Files) {
        let disk = |path: &Path, options: &str| {
            format!("file={},format=raw,if=virtio{options}", path.display())
        };
        let serial = |path: &Path| format!("file:{}", path.display());
        // The plainest CPU is the quickest to emulate. One of them: two that wait for each other
        // have stood still when the machine below had something else to do.
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

/// Where the serial ports write to.
struct Files {
    console: PathBuf,
    output: PathBuf,
    pulse: PathBuf,
}

impl Files {
    /// Returns when nothing was heard for long.
    async fn stands_still(&self) {
        let (mut heard, mut since) = ([0; 3], Instant::now());
        while since.elapsed() < STILL {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = [&self.console, &self.output, &self.pulse]
                .map(|port| fs::metadata(port).map_or(0, |about| about.len()));
            if now != heard {
                (heard, since) = (now, Instant::now());
            }
        }
    }

    fn outcome(&self) -> Result<Outcome> {
        let console = text(&self.console)?;
        let said = text(&self.output)?;
        let (output, status) = said.rsplit_once(END).context("the script never ended")?;
        let status = status.trim().parse().context("the script ended with no status")?;
        Ok(Outcome { status, output: output.to_owned(), console })
    }

    fn last_words(&self, machine: &Daemon) -> String {
        let end = |path| last_lines(&text(path).unwrap_or_default(), 20);
        format!(
            "the VM said:\n{}\non its console:\n{}\nby the script:\n{}",
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
