//! `podwright install` and `podwright uninstall`: this program as a part of the system, and the node
//! at boot.
//!
//! Both leave pods running: an agent that is replaced finds them again.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::cli::{InstallArgs, UninstallArgs};
use crate::installation::{self, Change, Packages, Plan, Target, UNIT};
use crate::standalone::Layout;
use crate::standalone::agent::{Agent, Supervisor};
use crate::standalone::containerd::find;
use crate::standalone::lock::NodeLock;

/// The agent does not wait for pods when it exits.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Exists while systemd runs, as its own tools check it.
const SYSTEMD: &str = "/run/systemd/system";
const NO_SYSTEMD: &str = "this machine does not run systemd, so the node does not start at boot. \
    Fix: let your init system run podwright up --foreground";

pub fn install(arguments: &InstallArgs) -> anyhow::Result<()> {
    let root = root(arguments.root.as_deref(), "podwright install")?;
    installation::check_path(&arguments.prefix)?;
    let this_machine = root == Path::new("/");
    let runs_systemd = Path::new(SYSTEMD).is_dir();
    let target = Target {
        systemd: !this_machine || runs_systemd,
        prefix: arguments.prefix.clone(),
        state_dir: std::path::absolute(&arguments.state_dir)?,
        root,
    };
    let files = installation::files(&target, Path::new("/proc/self/exe"))?;
    let plan = Plan::check(target.clone(), files, &Packages::of(&target.root)?)?;
    for (path, change) in plan.changes.iter().filter(|_| arguments.dry_run) {
        let what = match change {
            Change::Create => "would install",
            Change::Replace => "would replace",
            Change::Remove => "would remove",
            Change::Keep => continue,
        };
        say(&format!("{what} {}", path.display()))?;
    }
    if arguments.dry_run {
        return Ok(());
    }
    let changed = !plan.is_up_to_date();
    plan.apply()?;
    match changed {
        true => say(&format!("installed {}", target.program().display()))?,
        false => say(&format!("{} is already installed", target.program().display()))?,
    }
    match (this_machine, runs_systemd) {
        (true, true) => start_at_boot(&target, changed, arguments.no_start),
        (true, false) => say(NO_SYSTEMD),
        (false, _) => {
            let root = target.root.display();
            say(&format!("to start the node at boot: systemctl --root={root} enable {UNIT}"))
        }
    }
}

/// Enables the unit, and starts or restarts it.
fn start_at_boot(target: &Target, changed: bool, no_start: bool) -> anyhow::Result<()> {
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--quiet", UNIT])?;
    say("the node starts at boot")?;
    if no_start {
        return Ok(());
    }
    if systemctl_says(&["is-active", "--quiet", UNIT])? {
        if changed {
            systemctl(&["restart", UNIT])?;
            say("agent restarted; pods keep running")?;
        }
        return Ok(());
    }
    stop_background_agent(&target.state_dir)?;
    systemctl(&["start", UNIT])
        .with_context(|| format!("the node does not start. Fix: see journalctl --unit {UNIT}"))?;
    say(&format!("the node runs; see it with {} status", target.program().display()))
}

/// An agent that `podwright up` started in the background makes way for that of systemd.
fn stop_background_agent(state_dir: &Path) -> anyhow::Result<()> {
    let layout = Layout::new(state_dir);
    let agent = Agent::of(&layout);
    let Some(process) = agent.daemon().running()? else { return Ok(()) };
    if agent.note()?.is_some_and(|note| note.supervisor == Supervisor::External) {
        bail!(
            "an agent of this node runs in the foreground as process {}. Fix: stop it where it was \
             started, then run: systemctl start {UNIT}",
            process.pid
        );
    }
    let _lock = NodeLock::take(&layout, "install", &|text| {
        let _ = say(text);
    })?;
    agent.daemon().stop(AGENT_STOP_TIMEOUT)?;
    agent.forget();
    say("agent in the background stopped; systemd starts it. Pods keep running")
}

pub fn uninstall(arguments: &UninstallArgs) -> anyhow::Result<()> {
    let root = root(arguments.root.as_deref(), "podwright uninstall")?;
    installation::check_path(&arguments.prefix)?;
    let target = Target {
        root,
        prefix: arguments.prefix.clone(),
        systemd: false,
        state_dir: PathBuf::new(),
    };
    let this_machine = target.root == Path::new("/");
    let with_unit = this_machine && Path::new(SYSTEMD).is_dir() && installation::has_unit(&target)?;
    if with_unit && !arguments.dry_run {
        systemctl(&["disable", "--quiet", UNIT])?;
        if systemctl_says(&["is-active", "--quiet", UNIT])? {
            systemctl(&["stop", UNIT])?;
            say("agent stopped; pods keep running. To stop them: podwright down")?;
        }
    }
    let Some(outcome) = installation::uninstall(&target, arguments.dry_run)? else {
        return say("nothing is installed here");
    };
    let what = if arguments.dry_run { "would remove" } else { "removed" };
    for path in outcome.removed {
        say(&format!("{what} {}", path.display()))?;
    }
    for path in outcome.kept {
        say(&format!("kept {}: it was changed after it was installed", path.display()))?;
    }
    if with_unit && !arguments.dry_run {
        systemctl(&["daemon-reload"])?;
    }
    Ok(())
}

/// The directory that takes the place of `/`.
fn root(given: Option<&Path>, command: &str) -> anyhow::Result<PathBuf> {
    match given {
        Some(root) => {
            let found = std::fs::canonicalize(root);
            found.with_context(|| format!("cannot use --root {}", root.display()))
        }
        None if rustix::process::geteuid().is_root() => Ok("/".into()),
        None => bail!("{command} needs root. Fix: run with sudo"),
    }
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let output = systemctl_command(arguments)?.output().context("cannot run systemctl")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("systemctl {}: {}", arguments.join(" "), stderr.trim());
    }
    Ok(())
}

fn systemctl_says(arguments: &[&str]) -> anyhow::Result<bool> {
    let status = systemctl_command(arguments)?.status().context("cannot run systemctl")?;
    Ok(status.success())
}

fn systemctl_command(arguments: &[&str]) -> anyhow::Result<Command> {
    let program = find("systemctl")?.context("systemctl is not installed")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}
