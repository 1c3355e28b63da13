//! `podwright up`: a node alone on this machine.
//!
//! The command itself only prepares: it makes folders, starts the private containerd, loads the
//! sandbox image, starts the agent in the background and waits until it is ready. With
//! `--foreground` it then becomes the agent, and the API server that the agent and `kubectl` speak
//! to. On a node that runs already it changes what it is asked to change.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use podwright_node::server::Server;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::status::node;
use crate::agent::{self as node_agent, Surroundings};
use crate::cli::UpArgs;
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::{self, KubeletSettings, Preset};
use crate::standalone::agent::{Agent, Difference, Keeper, Note, Purpose};
use crate::standalone::api::{self, Api, Doors};
use crate::standalone::containerd::{Containerd, Started, find};
use crate::standalone::lock::NodeLock;
use crate::standalone::network::Network;
use crate::standalone::resolver::Resolver;
use crate::standalone::runtime::{self, Absent};
use crate::standalone::shared::Shared;
use crate::standalone::wishes::Wishes;
use crate::standalone::{Layout, Record, log, own_mounts, state_dir, stopping};
use crate::{logging, service};

/// Much more than a start takes: a small machine may have other things to do.
const AGENT_PATIENCE: Duration = Duration::from_secs(120);
/// It waits for no pod when it ends.
const AGENT_END: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
/// Whoever waits longer wants to know what for.
const SILENCE: Duration = Duration::from_secs(2);

/// Starts the node.
pub fn run(arguments: &UpArgs) -> anyhow::Result<()> {
    require_root("podwright up")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let runtime = service::runtime()?;
    // The command that starts an agent in the background holds the lock for both.
    let inherited = if arguments.foreground { NodeLock::inherited(&layout)? } else { None };
    let mut lock = match inherited {
        Some(lock) => lock,
        None => NodeLock::take(&layout, "up", &say)?,
    };
    if arguments.foreground {
        return runtime.block_on(foreground(&layout, arguments, lock));
    }
    runtime.block_on(background(&layout, arguments, &mut lock))
}

pub(super) fn require_root(command: &str) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        anyhow::bail!("{command} needs root: pods need mounts, cgroups and a network; try sudo");
    }
    Ok(())
}

/// Becomes the agent.
async fn foreground(layout: &Layout, arguments: &UpArgs, mut lock: NodeLock) -> anyhow::Result<()> {
    if let Some(agent) = Agent::of(layout).daemon().running()?
        && agent.pid != std::process::id()
    {
        anyhow::bail!("the agent of this node runs already, as process {}", agent.pid);
    }
    let Prepared { settings, gateway, wishes } =
        prepare(layout, arguments, &mut lock, &say).await?;
    logging::start(&settings.configuration.logging).context("cannot start logging")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let runtime_log = wishes.runtime.is_none().then(|| Containerd::new(layout).log());
    tokio::spawn(log::rotate(arguments.log_file.clone(), runtime_log));
    let stop = service::stop_signal()?;
    let for_pods = gateway.filter(|_| !wishes.no_pod_api);
    let api = Api::open(layout, Doors { port: wishes.api_port, for_pods }).await?;
    let me = Agent::of(layout);
    let keeper = if arguments.log_file.is_some() { Keeper::Us } else { Keeper::Other };
    let shared_runtime = wishes.runtime.is_some();
    me.is_us(&Note { wishes, keeper })?;
    if let Err(error) = own_mounts::share_agent_root(layout) {
        let error = format!("{error:#}");
        tracing::warn!(
            error,
            "mounts below the root directory are private; mountPropagation fails"
        );
    }
    // From here on other commands find us by the pid file.
    drop(lock);
    let streams = api.streams();
    let clients = api.clients(&settings.node_name);
    let surroundings = Surroundings {
        log_links: layout.log_links(),
        alone: true,
        shared_runtime,
        stop_pods: arguments.stop_pods,
        api: Some(clients.clone()),
    };
    // The agent goes first: until it has ended it has things to say to the API server.
    let api_stop = CancellationToken::new();
    let serving = tokio::spawn(api.run(api_stop.clone()));
    let on_ready = |server: &Arc<Server>| streams.open(server.clone());
    let outcome = node_agent::run(&settings, surroundings, on_ready, stop).await;
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
async fn background(
    layout: &Layout,
    arguments: &UpArgs,
    lock: &mut NodeLock,
) -> anyhow::Result<()> {
    let Prepared { settings, wishes, .. } = prepare(layout, arguments, lock, &say).await?;
    end_another_agent(layout, &wishes).await?;
    let ready = || patiently("waiting for the node to be Ready", &say, is_ready(layout));
    if ready().await? {
        say("agent: runs already");
    } else {
        Agent::of(layout).start(lock, Purpose::RunPods)?;
        if !ready().await? {
            anyhow::bail!("the agent ended: {}", last_line(&layout.agent_log()));
        }
        say(&format!("agent: started, log in {}", layout.agent_log().display()));
    }
    say(&format!("node {} is Ready", settings.node_name));
    say(&next_steps(layout, find("kubectl").is_some()));
    Ok(())
}

/// Ends an agent that is not the one that is wanted. No pod notices.
async fn end_another_agent(layout: &Layout, wishes: &Wishes) -> anyhow::Result<()> {
    let agent = Agent::of(layout);
    let Some(process) = agent.daemon().running()? else { return Ok(()) };
    let difference = match agent.difference(&process, wishes)? {
        Some(difference) => difference,
        None if stopping::is_requested(layout).await => Difference::Stopping,
        None => return Ok(()),
    };
    let keeper = agent.note()?.map_or(Keeper::Us, |note| note.keeper);
    match (keeper, difference) {
        (Keeper::Us, Difference::Build) => say("agent: another build runs; it is replaced"),
        (Keeper::Us, Difference::Wishes) => say("agent: is started anew with what is asked for"),
        (Keeper::Us, Difference::Stopping) => {
            say("agent: is stopping the pods for an interrupted podwright down; it is replaced");
        }
        (Keeper::Other, Difference::Stopping) => anyhow::bail!(
            "the agent, process {}, runs in the foreground and is stopping its pods for an \
             interrupted podwright down. Fix: restart it where it was started \
             (systemctl restart podwright-up), or finish with podwright down",
            process.pid
        ),
        // Not ours to end. It does what it is there for.
        (Keeper::Other, Difference::Build) => {
            say(&format!(
                "agent: another build runs in the foreground, as process {}; restart it where it \
                 was started (systemctl restart podwright-up)",
                process.pid
            ));
            return Ok(());
        }
        (Keeper::Other, Difference::Wishes) => anyhow::bail!(
            "the agent runs in the foreground, as process {}, with other flags; restart it where \
             it was started (systemctl restart podwright-up), and it does what is asked for now",
            process.pid
        ),
    }
    agent.daemon().stop(AGENT_END)?;
    agent.forget();
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
    wishes: Wishes,
}

/// Makes everything the agent stands on.
async fn prepare(
    layout: &Layout,
    arguments: &UpArgs,
    lock: &mut NodeLock,
    say: &impl Fn(&str),
) -> anyhow::Result<Prepared> {
    state_dir::examine(layout)?;
    layout.check_instance()?;
    let host = Host::observe().context("cannot find out about this machine")?;
    let known = layout.record()?;
    let record = match &known {
        Some(record) => {
            let wishes = record.wishes.amended(arguments, &record.network)?;
            Record { wishes, ..record.clone() }
        }
        None => Record {
            state_dir: Some(layout.state().to_string_lossy().into_owned()),
            network: Network::choose(layout.bridge(), arguments.pod_cidr.as_deref())?,
            cgroup_root: layout.cgroup_root(),
            wishes: Wishes::of(arguments)?,
        },
    };
    if let Some(endpoint) = &record.wishes.runtime {
        let absent = if arguments.foreground { Absent::Awaited } else { Absent::Refused };
        runtime::examine(endpoint, &record.cgroup_root, absent).await?;
    }
    if let Some(port) = arguments.api_port {
        check_port(layout, port, &record)?;
    }
    // Each is written before what it is about is made.
    state_dir::claim(layout)?;
    lock.take_made_directory(layout, say)?;
    if known.as_ref() != Some(&record) {
        layout.write_record(&record)?;
    }
    layout.make()?;
    let Record { network, wishes, .. } = record;
    let endpoint = match &wishes.runtime {
        Some(endpoint) => endpoint.clone(),
        None => {
            Shared::here()?.join(layout)?;
            start_containerd(layout, &network, lock, say).await?
        }
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
    let flags = Flags::parse([root_dir.into()]);
    let settings = config::resolve(&flags, &preset, &host)?;
    let gateway = network.gateway().filter(|_| wishes.runtime.is_none());
    Ok(Prepared { settings, gateway, wishes })
}

async fn start_containerd(
    layout: &Layout,
    network: &Network,
    lock: &NodeLock,
    say: &impl Fn(&str),
) -> anyhow::Result<String> {
    let containerd = Containerd::new(layout);
    let started = containerd.start(network, lock)?;
    let version = patiently("waiting for containerd", say, containerd.ready()).await?;
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

/// Checks a port that is asked for before anything is changed for it: the agent that runs would be
/// ended for one that cannot start.
fn check_port(layout: &Layout, port: u16, record: &Record) -> anyhow::Result<()> {
    let running = Agent::of(layout).daemon().running()?.is_some();
    if running && api::remembered_port(layout) == Some(port) {
        return Ok(());
    }
    let for_pods = record.network.gateway().filter(|_| record.wishes.runtime.is_none());
    api::check_port(port, for_pods.filter(|_| !record.wishes.no_pod_api))
}

/// Waits until the agent's own API server says that the node is ready; false if there is no agent.
///
/// That it is in the process table is not enough: one that was just killed still is, for a moment.
async fn is_ready(layout: &Layout) -> anyhow::Result<bool> {
    let agent = Agent::of(layout).daemon();
    let deadline = Instant::now() + AGENT_PATIENCE;
    while agent.running()?.is_some() {
        let seen = node::look(&layout.kubeconfig()).await;
        if seen.is_some_and(|node| node.ready) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            let (waited, log) = (AGENT_PATIENCE.as_secs(), layout.agent_log());
            let log = log.display();
            anyhow::bail!("the node is not ready after {waited} s; the agent's log is {log}");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
}

/// Waits, and says what for once that takes long.
async fn patiently<T>(what: &str, say: &impl Fn(&str), act: impl Future<Output = T>) -> T {
    let mut act = pin!(act);
    tokio::select! { biased;
        done = &mut act => return done,
        () = tokio::time::sleep(SILENCE) => say(what), // the act goes on below
    }
    act.await
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_told_once_and_what_does_not_is_not() {
        for (seconds, want) in [(0, 0), (1, 0), (20, 1)] {
            let said = RefCell::new(Vec::new());
            let say = |text: &str| said.borrow_mut().push(text.to_owned());
            let act = async {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                seconds
            };
            assert_eq!(patiently("waiting", &say, act).await, seconds);
            assert_eq!(said.into_inner(), vec!["waiting"; want], "{seconds} s");
        }
    }
}
