//! `podwright up`: a node alone on this machine.
//!
//! The command itself only prepares: it makes folders, starts the private containerd, loads the
//! sandbox image, starts the agent in the background and waits until it is ready. With
//! `--foreground` it then becomes the agent, and the API server that the agent and `kubectl` speak
//! to.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use podwright_node::server::Server;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::status::node;
use crate::agent::{self, Surroundings};
use crate::cli::UpArgs;
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::{self, KubeletSettings, Preset};
use crate::standalone::api::{Api, Wishes};
use crate::standalone::containerd::{Cgroups, Containerd, Started, find};
use crate::standalone::network::{Network, plugin_chains};
use crate::standalone::resolver::Resolver;
use crate::standalone::{Layout, Record, log, teardown};
use crate::{logging, service};

const AGENT_PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

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
    let Prepared { settings, gateway } = prepare(layout, arguments, &say).await?;
    logging::start(&settings.configuration.logging).context("cannot start logging")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(file) = &arguments.log_file {
        tokio::spawn(log::rotate(file.clone()));
    }
    let stop = service::stop_signal()?;
    let for_pods = gateway.filter(|_| !arguments.no_pod_api);
    let api = Api::open(layout, Wishes { port: arguments.api_port, for_pods }).await?;
    let me = teardown::agent(layout);
    me.note_self()?;
    let streams = api.streams();
    let clients = api.clients(&settings.node_name);
    let surroundings =
        Surroundings { log_links: layout.log_links(), alone: true, api: Some(clients.clone()) };
    // The agent goes first: until it has ended it has things to say to the API server.
    let api_stop = CancellationToken::new();
    let serving = tokio::spawn(api.run(api_stop.clone()));
    let on_ready = |server: &Arc<Server>| streams.open(server.clone());
    let outcome = agent::run(&settings, surroundings, on_ready, stop).await;
    api_stop.cancel();
    let _ = serving.await;
    me.forget();
    outcome
}

/// If nobody reads it, nobody misses it.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prepares, starts the agent behind us, and says how to go on.
async fn background(layout: &Layout, arguments: &UpArgs) -> anyhow::Result<()> {
    let Prepared { settings, .. } = prepare(layout, arguments, &say).await?;
    if is_ready(layout).await? {
        say("agent: runs already");
    } else {
        start_agent(layout, arguments)?;
        if !is_ready(layout).await? {
            anyhow::bail!("the agent ended: {}", last_line(&layout.agent_log()));
        }
        say(&format!("agent: started, log in {}", layout.agent_log().display()));
    }
    say(&format!("node {} is Ready", settings.node_name));
    say(&next_steps(layout, find("kubectl").is_some()));
    Ok(())
}

/// What to do with a node that is ready.
fn next_steps(layout: &Layout, kubectl: bool) -> String {
    let state = layout.state().display();
    let missing = match kubectl {
        true => "",
        false => "\nkubectl is not installed; on Debian: apt-get install kubernetes-client\n",
    };
    format!(
        "{missing}
  export KUBECONFIG={}
  kubectl get nodes,pods --all-namespaces
  kubectl run hello --image=IMAGE           # or: kubectl apply -f FILE
  kubectl logs --follow hello
  podwright down --state-dir {state}        # stops everything, keeps the data",
        layout.kubeconfig().display()
    )
}

/// What the agent stands on.
struct Prepared {
    settings: KubeletSettings,
    /// The machine's address on the bridge of the pods, if the bridge is ours.
    gateway: Option<Ipv4Addr>,
}

/// Makes everything the agent stands on.
async fn prepare(
    layout: &Layout,
    arguments: &UpArgs,
    say: &impl Fn(&str),
) -> anyhow::Result<Prepared> {
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
    let resolver = Resolver::find(Path::new("/"));
    if let Some(warning) = &resolver.warning {
        say(warning);
    }
    let preset = Preset::up(&json!({
        "containerRuntimeEndpoint": endpoint,
        "staticPodPath": layout.manifests(),
        "podLogsDir": layout.pod_logs(),
        "resolvConf": resolver.file,
        "cgroupRoot": layout.cgroup_root(),
        "cgroupDriver": "cgroupfs",
        "makeIPTablesUtilChains": false,
        // The disk is somebody's own and full of other things, and what was loaded by hand cannot
        // be pulled again. Images go when somebody says so.
        "imageGCHighThresholdPercent": 100,
        // Nobody asks a node that is alone, and two of them would want the same ports. What the
        // kubelet's server has to say, the API server in this process asks it directly.
        "healthzPort": 0,
        "enableServer": false,
    }));
    let root_dir = format!("--root-dir={}", layout.root_dir().display());
    let flags = Flags::parse([root_dir.into()])?;
    let settings = config::resolve(&flags, &preset, &host)?;
    Ok(Prepared { settings, gateway: network.gateway().filter(|_| private) })
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
    if let Some(port) = arguments.api_port {
        command.args(["--api-port", &port.to_string()]);
    }
    if arguments.no_pod_api {
        command.arg("--no-pod-api");
    }
    command.arg("--log-file").arg(layout.agent_log());
    teardown::agent(layout).start(&mut command, &layout.agent_log())?;
    Ok(())
}

/// Waits until the agent's own API server says that the node is ready; false if there is no agent.
///
/// That it is in the process table is not enough: one that was just killed still is, for a moment.
async fn is_ready(layout: &Layout) -> anyhow::Result<bool> {
    let agent = teardown::agent(layout);
    let deadline = Instant::now() + AGENT_PATIENCE;
    while agent.running()?.is_some() {
        let seen = node::look(&layout.kubeconfig()).await;
        if seen.is_some_and(|node| node.ready) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            let log = layout.agent_log();
            anyhow::bail!("the node is not ready after 30 s; the agent's log is {}", log.display());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
