//! Takes away what `up` made: the same things, in the opposite order.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use podwright_core::cgroup::CgroupName;
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_cri::Client;
use podwright_host::cgroup::{Cgroups, Owner};
use podwright_host::machine;
use podwright_host::mounts::{self, Unmount};
use podwright_host::process::ProcessIdentity;

use super::containerd::Containerd;
use super::daemon::{self, Daemon};
use super::network::plugin_chains;
use super::{Layout, Record};

const AGENT_PATIENCE: Duration = Duration::from_secs(15);
const RUNTIME_PATIENCE: Duration = Duration::from_secs(10);
/// What a container gets to end when the whole node goes down.
const CONTAINER_GRACE: Duration = Duration::from_secs(10);

/// The agent's own pid file.
pub fn agent(layout: &Layout) -> Daemon {
    Daemon::new(layout.run().join("agent.pid"))
}

/// Stops everything and removes it from the machine. The data stays. `say` tells progress.
pub async fn down(layout: &Layout, say: impl Fn(&str)) -> anyhow::Result<()> {
    let Some(record) = layout.record()? else {
        say("nothing to stop here");
        return Ok(());
    };
    if agent(layout).stop(AGENT_PATIENCE)? {
        say("agent stopped");
    }
    if record.private_runtime {
        stop_runtime(layout, &say).await?;
    }
    unmount_all(layout)?;
    remove_cgroups(&record).await?;
    remove_network(&record)?;
    restore_forwarding(&record)?;
    remove(&layout.run())?;
    // The folder above is shared by all nodes of the machine; the last one takes it away.
    let _ = layout.run().parent().map(std::fs::remove_dir);
    layout.forget_record()?;
    say("everything is taken down; the data is kept");
    Ok(())
}

async fn stop_runtime(layout: &Layout, say: &impl Fn(&str)) -> anyhow::Result<()> {
    let containerd = Containerd::new(layout);
    if containerd.daemon().running()?.is_some() {
        let pods = stop_pods(&containerd.client()?).await?;
        if pods > 0 {
            say(&format!("{pods} pods stopped"));
        }
        containerd.daemon().stop(RUNTIME_PATIENCE)?;
        say("containerd stopped");
    }
    // A shim holds its containers without containerd; one that is left belongs to a pod that
    // could not be stopped, or to a containerd that was killed.
    for shim in shims_of(layout)? {
        daemon::end(&shim, RUNTIME_PATIENCE)?;
    }
    Ok(())
}

async fn stop_pods(runtime: &Client) -> anyhow::Result<usize> {
    let containers = runtime.list_containers(None).await?;
    let stops = containers.iter().map(|container| {
        let id = ContainerId::new(container.id.as_str());
        async move { runtime.stop_container(&id, CONTAINER_GRACE).await }
    });
    for result in futures::future::join_all(stops).await {
        result?;
    }
    let sandboxes = runtime.list_sandboxes(None).await?;
    for sandbox in &sandboxes {
        let id = SandboxId::new(sandbox.id.as_str());
        runtime.stop_sandbox(&id).await?;
        runtime.remove_sandbox(&id).await?;
    }
    Ok(sandboxes.len())
}

/// Shims that were started for our socket, and nobody else's.
fn shims_of(layout: &Layout) -> anyhow::Result<Vec<ProcessIdentity>> {
    let socket = layout.socket();
    let mut shims = Vec::new();
    for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(command) = std::fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        let mut words = command.split(|byte| *byte == 0);
        let is_shim = words
            .next()
            .is_some_and(|program| String::from_utf8_lossy(program).contains("containerd-shim"));
        let ours = words.any(|word| word == socket.as_os_str().as_encoded_bytes());
        if is_shim && ours {
            shims.extend(ProcessIdentity::of(Path::new("/proc"), pid)?);
        }
    }
    Ok(shims)
}

fn unmount_all(layout: &Layout) -> anyhow::Result<()> {
    let table = mounts::table(Path::new("/proc"))?;
    for folder in [layout.run(), layout.state().to_owned()] {
        let mut points: Vec<_> =
            mounts::at_or_below(&table, &folder).iter().map(|m| m.point.clone()).collect();
        points.sort();
        for point in points.iter().rev() {
            mounts::unmount(point, Unmount::Lazy)?;
        }
    }
    Ok(())
}

async fn remove_cgroups(record: &Record) -> anyhow::Result<()> {
    let table = mounts::table(Path::new("/proc"))?;
    let sizes = machine::hugepage_sizes(Path::new("/"))?;
    let cgroups = Cgroups::open(&table, Path::new("/sys/fs/cgroup"), Owner::Us, sizes)?;
    let root = CgroupName::parse(&record.cgroup_root)?;
    if !root.is_root() {
        cgroups.destroy(&root).await?;
    }
    Ok(())
}

fn remove_network(record: &Record) -> anyhow::Result<()> {
    let bridge = &record.network.bridge;
    // Asked of ip and not of /sys, which may show another network namespace than ours.
    if run("ip", &["link", "show", "dev", bridge]).is_ok() {
        run("ip", &["link", "delete", bridge])?;
    }
    remove_chains(record)
}

/// The network plugins leave their top chains behind; those that came with us go with us.
fn remove_chains(record: &Record) -> anyhow::Result<()> {
    let ours: Vec<String> =
        plugin_chains()?.into_iter().filter(|chain| !record.chains.contains(chain)).collect();
    let rules = String::from_utf8_lossy(
        &Command::new("iptables-save").output().context("cannot run iptables-save")?.stdout,
    )
    .into_owned();
    let mut table = "";
    // First whatever points at them, then what is in them, then the chains.
    for line in rules.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let target = line.split(" -j ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let points_at_ours =
            target.is_some_and(|target| ours.contains(&format!("{table} {target}")));
        if let Some(rule) = line.strip_prefix("-A ").filter(|_| points_at_ours) {
            let words = shell_words(&format!("-t {table} -D {rule}"));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            run("iptables", &words)?;
        }
    }
    for action in ["-F", "-X"] {
        for chain in &ours {
            if let Some((table, name)) = chain.split_once(' ') {
                run("iptables", &["-t", table, action, name])?;
            }
        }
    }
    Ok(())
}

/// Splits a rule as iptables-save quotes it.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                quoted = !quoted;
                any = true;
            }
            '\\' if quoted => word.extend(chars.next()),
            ' ' if !quoted => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words
}

fn restore_forwarding(record: &Record) -> anyhow::Result<()> {
    const PATH: &str = "/proc/sys/net/ipv4/ip_forward";
    let now = std::fs::read_to_string(PATH).unwrap_or_default();
    if now.trim() != record.ip_forward {
        std::fs::write(PATH, &record.ip_forward).context("cannot restore net.ipv4.ip_forward")?;
    }
    Ok(())
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let path = super::containerd::find(program).with_context(|| format!("{program} is missing"))?;
    let output = Command::new(path).args(arguments).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("{program} {} failed: {}", arguments.join(" "), said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_of_a_rule_stay_together() {
        let rule = r#"-t nat -D POSTROUTING -m comment --comment "name: \"x\" id: 1" -j CNI-A"#;
        let words = shell_words(rule);
        assert_eq!(words[7], "name: \"x\" id: 1");
        assert_eq!(words.last().map(String::as_str), Some("CNI-A"));
    }
}
