//! `podwright up`: a node alone on this machine.
//!
//! The command itself only prepares: it makes folders, starts the private containerd, loads the
//! sandbox image, starts the agent in the background and waits until it is ready. With
//! `--foreground` it then becomes the agent.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use crate::agent::{self, Surroundings};
use crate::cli::UpArgs;
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::{self, KubeletSettings, Preset};
use crate::standalone::containerd::{Cgroups, Containerd, Started};
use crate::standalone::network::{Network, plugin_chains};
use crate::standalone::{Layout, Record, teardown};
use crate::{logging, service};

const AGENT_PATIENCE: Duration = Duration::from_secs(30);

/// Starts the node.
pub fn run(arguments: &UpArgs) -> anyhow::Result<()> {
    require_root("podwright up")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let runtime = service::runtime()?;
    if arguments.foreground {
        return runtime.block_on(foreground(&layout, arguments));
    }
    runtime.block_on(background(&layout, arguments))
}

pub(super) fn require_root(command: &str) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        anyhow::bail!("{command} needs root: pods need mounts, cgroups and a network; try sudo");
    }
    Ok(())
}

/// Becomes the agent.
async fn foreground(layout: &Layout, arguments: &UpArgs) -> anyhow::Result<()> {
    let settings = prepare(layout, arguments, &say).await?;
    logging::start(&settings.configuration.logging).context("cannot start logging")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let me = teardown::agent(layout);
    me.note_self()?;
    let stop = service::stop_signal()?;
    let surroundings =
        Surroundings { log_links: layout.log_links(), make_cgroup_root: true, api: None };
    let ready = layout.run().join("agent.ready");
    let on_ready = || std::fs::write(&ready, "").context("cannot say that the node is ready");
    let outcome = agent::run(&settings, surroundings, on_ready, stop).await;
    let _ = std::fs::remove_file(&ready);
    me.forget();
    outcome
}

/// If nobody reads it, nobody misses it.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prepares, starts the agent behind us, and says how to go on.
async fn background(layout: &Layout, arguments: &UpArgs) -> anyhow::Result<()> {
    let settings = prepare(layout, arguments, &say).await?;
    if teardown::agent(layout).running()?.is_some() {
        say("agent: runs already");
    } else {
        start_agent(layout, arguments)?;
        say(&format!("agent: started, log in {}", layout.agent_log().display()));
    }
    say(&format!("node {} is up", settings.node_name));
    say(&format!("put manifests of pods into {}", layout.manifests().display()));
    Ok(())
}

/// Makes everything the agent stands on.
async fn prepare(
    layout: &Layout,
    arguments: &UpArgs,
    say: &impl Fn(&str),
) -> anyhow::Result<KubeletSettings> {
    let host = Host::observe().context("cannot find out about this machine")?;
    let known = layout.record()?;
    let network = match &known {
        Some(record) => record.network.clone(),
        None => Network::choose(layout.bridge(), arguments.pod_cidr.as_deref())?,
    };
    layout.make()?;
    let private = arguments.container_runtime_endpoint.is_none();
    if known.is_none() {
        layout.write_record(&Record {
            network: network.clone(),
            cgroup_root: layout.cgroup_root(),
            ip_forward: agent::ip_forward()?,
            chains: plugin_chains()?,
            private_runtime: private,
        })?;
    }
    let endpoint = match &arguments.container_runtime_endpoint {
        Some(endpoint) => endpoint.clone(),
        None => start_containerd(layout, &network, say).await?,
    };
    let preset = Preset::up(&json!({
        "containerRuntimeEndpoint": endpoint,
        "staticPodPath": layout.manifests(),
        "podLogsDir": layout.pod_logs(),
        "cgroupRoot": layout.cgroup_root(),
        "cgroupDriver": "cgroupfs",
        "makeIPTablesUtilChains": false,
        // Nobody asks a node that is alone, and two of them would want the same port.
        "healthzPort": 0,
    }));
    let root_dir = format!("--root-dir={}", layout.root_dir().display());
    let flags = Flags::parse([root_dir.into()])?;
    Ok(config::resolve(&flags, &preset, &host)?)
}

async fn start_containerd(
    layout: &Layout,
    network: &Network,
    say: &impl Fn(&str),
) -> anyhow::Result<String> {
    let containerd = Containerd::new(layout);
    let cgroups = Cgroups { systemd: false, restrict_oom: !may_lower_oom_score() };
    let started = containerd.start(network, cgroups)?;
    let version = containerd.ready().await?;
    let how = match started {
        Started::Now => "started",
        Started::Already => "runs already",
    };
    say(&format!("containerd {}: {how}", version.runtime_version));
    match containerd.load_pause_image().await? {
        Started::Now => say("sandbox image: loaded"),
        Started::Already => say("sandbox image: there already"),
    }
    Ok(format!("unix://{}", layout.socket().display()))
}

/// CAP_SYS_RESOURCE, as the kernel lists our capabilities.
fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << CAP_SYS_RESOURCE) != 0
}

fn start_agent(layout: &Layout, arguments: &UpArgs) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["up", "--foreground", "--state-dir"]).arg(layout.state());
    if let Some(endpoint) = &arguments.container_runtime_endpoint {
        command.args(["--container-runtime-endpoint", endpoint]);
    }
    // Left by an agent that was killed: it says nothing about the one we start.
    let _ = std::fs::remove_file(layout.run().join("agent.ready"));
    let agent = teardown::agent(layout);
    agent.start(&mut command, &layout.agent_log())?;
    wait_until_ready(layout)
}

fn wait_until_ready(layout: &Layout) -> anyhow::Result<()> {
    let (agent, log) = (teardown::agent(layout), layout.agent_log());
    let deadline = Instant::now() + AGENT_PATIENCE;
    while Instant::now() < deadline {
        if layout.run().join("agent.ready").exists() {
            return Ok(());
        }
        if agent.running()?.is_none() {
            anyhow::bail!("the agent ended: {}", last_line(&log));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("the agent is not ready after 30 s; its log is {}", log.display())
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
