//! `podwright up`: starts a standalone node on this machine.
//!
//! The command creates directories, starts the private containerd, loads the sandbox image, starts
//! the agent in the background and waits until the node is ready. With `--foreground` this process
//! becomes the agent, together with the API server that the agent and `kubectl` use. On a running
//! node the command applies changed flags.

use std::io::Write;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use podwright_node::server::Server;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::objects::Objects;
use crate::agent::{self as node_agent, AgentOptions};
use crate::cli::UpArgs;
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::{self, KubeletSettings, Preset};
use crate::printable::printable;
use crate::standalone::agent::{Agent, Difference, Note, Purpose, Supervisor};
use crate::standalone::api::{self, Api, ListenOptions};
use crate::standalone::containerd::{Containerd, Started, find};
use crate::standalone::isolation::Isolation;
use crate::standalone::lock::NodeLock;
use crate::standalone::network::{Network, Subnet};
use crate::standalone::resolver::Resolver;
use crate::standalone::runtime::{self, Absent};
use crate::standalone::shared_network::SharedNetwork;
use crate::standalone::supervisor::RuntimeSupervisor;
use crate::standalone::up_options::UpOptions;
use crate::standalone::{Layout, Record, backup, log, own_mounts, state_dir, stopping};
use crate::{logging, service};

/// Much more than a start takes, for a small and busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// The agent does not wait for pods when it exits.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
/// After this the command prints what it is waiting for.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

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
        anyhow::bail!("{command} needs root, for mounts, cgroups and networks. Fix: run with sudo");
    }
    Ok(())
}

/// Runs the agent in this process.
async fn foreground(layout: &Layout, arguments: &UpArgs, mut lock: NodeLock) -> anyhow::Result<()> {
    if let Some(agent) = Agent::of(layout).daemon().running()?
        && agent.pid != std::process::id()
    {
        anyhow::bail!("the agent of this node is already running as process {}", agent.pid);
    }
    let PreparedNode { settings, pod_network, up_options } =
        prepare(layout, arguments, &mut lock, &say).await?;
    logging::start(&settings.configuration.logging).context("cannot start logging")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let runtime_log = up_options.runtime.is_none().then(|| Containerd::new(layout).log());
    tokio::spawn(log::rotate(arguments.log_file.clone(), runtime_log));
    let stop = service::stop_signal()?;
    let for_pods = pod_network.as_ref().filter(|_| !up_options.no_pod_api);
    let for_pods = for_pods.and_then(Network::subnet);
    let api = Api::open(layout, ListenOptions { port: up_options.api_port, for_pods }).await?;
    let me = Agent::of(layout);
    let supervisor =
        if arguments.log_file.is_some() { Supervisor::Podwright } else { Supervisor::External };
    let shared_runtime = up_options.runtime.is_some();
    me.register_self(&Note { up_options, supervisor })?;
    if let Err(error) = own_mounts::share_agent_root(layout) {
        let error = format!("{error:#}");
        tracing::warn!(
            error,
            "cannot share mounts below the root directory, mountPropagation does not work"
        );
    }
    // From here on other commands find this process by its pid file.
    drop(lock);
    let supervised = pod_network.as_ref().map(|network| {
        let (supervisor, supervised) = RuntimeSupervisor::new(layout, network.clone());
        tokio::spawn(supervisor.run(stop.clone()));
        supervised
    });
    let agent_connector = api.agent_connector();
    let clients = api.clients(&settings.node_name)?;
    let agent_options = AgentOptions {
        log_links: layout.log_links(),
        standalone: true,
        shared_runtime,
        stop_pods: arguments.stop_pods,
        api: Some(clients.clone()),
        supervised,
    };
    // The agent stops first: until then it sends requests to the API server.
    let api_stop = CancellationToken::new();
    if let Some(network) = pod_network {
        tokio::spawn(Isolation::new(layout.instance(), network).maintain(api_stop.clone()));
    }
    tokio::spawn(backup::serve_objects(layout.clone(), api.copy_objects(), stop.clone()));
    let serving = tokio::spawn(api.run(api_stop.clone()));
    let on_ready = |server: &Arc<Server>| agent_connector.open(server.clone());
    let outcome = node_agent::run(&settings, agent_options, on_ready, stop).await;
    api_stop.cancel();
    let _ = serving.await;
    me.forget();
    outcome
}

/// Prints progress; a closed stdout is no error.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prepares the node, starts the agent in the background and prints the next steps.
async fn background(
    layout: &Layout,
    arguments: &UpArgs,
    lock: &mut NodeLock,
) -> anyhow::Result<()> {
    let PreparedNode { settings, up_options, .. } = prepare(layout, arguments, lock, &say).await?;
    stop_outdated_agent(layout, &up_options).await?;
    let ready = || with_progress("waiting for the node to be Ready", &say, is_ready(layout));
    if ready().await? {
        say("agent: already running");
    } else {
        Agent::of(layout).start(lock, Purpose::RunPods)?;
        if !ready().await? {
            anyhow::bail!("the agent failed to start: {}", last_line(&layout.agent_log()));
        }
        say(&format!("agent: started, log in {}", layout.agent_log().display()));
    }
    say(&format!("node {} is Ready", settings.node_name));
    say(&next_steps(layout, find("kubectl").is_ok_and(|kubectl| kubectl.is_some())));
    Ok(())
}

/// Stops an agent of another build or with other options. Pods keep running.
async fn stop_outdated_agent(layout: &Layout, up_options: &UpOptions) -> anyhow::Result<()> {
    let agent = Agent::of(layout);
    let Some(process) = agent.daemon().running()? else { return Ok(()) };
    let difference = match agent.difference(&process, up_options)? {
        Some(difference) => difference,
        None if stopping::is_requested(layout).await => Difference::Stopping,
        None => return Ok(()),
    };
    let supervisor = agent.note()?.map_or(Supervisor::Podwright, |note| note.supervisor);
    match (supervisor, difference) {
        (Supervisor::Podwright, Difference::Build) => {
            say("agent: replacing an agent of another build");
        }
        (Supervisor::Podwright, Difference::UpOptions) => say("agent: restarting with new flags"),
        (Supervisor::Podwright, Difference::Stopping) => {
            say(
                "agent: replacing an agent that is stopping pods for an interrupted podwright down",
            );
        }
        (Supervisor::External, Difference::Stopping) => anyhow::bail!(
            "the agent (process {}) runs in the foreground and is stopping pods for an \
             interrupted podwright down. Fix: restart it where it was started \
             (systemctl restart podwright-up), or run podwright down again",
            process.pid
        ),
        // It is supervised elsewhere and works; it is not stopped.
        (Supervisor::External, Difference::Build) => {
            say(&format!(
                "agent: another build is running in the foreground as process {}. Fix: restart it \
                 where it was started (systemctl restart podwright-up)",
                process.pid
            ));
            return Ok(());
        }
        (Supervisor::External, Difference::UpOptions) => anyhow::bail!(
            "the agent (process {}) runs in the foreground with other flags. Fix: restart it where \
             it was started (systemctl restart podwright-up) to apply the new flags",
            process.pid
        ),
    }
    agent.daemon().stop(AGENT_STOP_TIMEOUT)?;
    agent.forget();
    Ok(())
}

/// Hints for a node that is ready.
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

/// Everything the agent needs.
struct PreparedNode {
    settings: KubeletSettings,
    /// The pod network, if the runtime is the private containerd.
    pod_network: Option<Network>,
    up_options: UpOptions,
}

/// Creates everything the agent needs.
async fn prepare(
    layout: &Layout,
    arguments: &UpArgs,
    lock: &mut NodeLock,
    say: &impl Fn(&str),
) -> anyhow::Result<PreparedNode> {
    state_dir::examine(layout)?;
    layout.check_instance()?;
    let host = Host::observe().context("cannot read machine information")?;
    let existing = layout.record()?;
    let record = match &existing {
        Some(record) => {
            let up_options = record.up_options.amended(arguments, &record.network)?;
            Record { up_options, ..record.clone() }
        }
        None => Record {
            state_dir: Some(layout.state().to_string_lossy().into_owned()),
            network: Network::choose(layout.bridge(), arguments.pod_cidr.as_deref())?,
            cgroup_root: layout.cgroup_root(),
            up_options: UpOptions::of(arguments)?,
        },
    };
    if let Some(endpoint) = &record.up_options.runtime {
        let absent = if arguments.foreground { Absent::Awaited } else { Absent::Refused };
        runtime::examine(endpoint, &record.cgroup_root, absent).await?;
    }
    if let Some(port) = arguments.api_port {
        check_port(layout, port, &record)?;
    }
    // Marker and record are written before what they describe is created.
    state_dir::claim(layout)?;
    lock.take_made_directory(layout, say)?;
    if existing.as_ref() != Some(&record) {
        layout.write_record(&record)?;
    }
    layout.make()?;
    let Record { network, up_options, .. } = record;
    let endpoint = match &up_options.runtime {
        Some(endpoint) => endpoint.clone(),
        None => {
            SharedNetwork::here()?.join(layout)?;
            // Before the first pod can have an address.
            Isolation::new(layout.instance(), network.clone()).ensure().await?;
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
        // Pods of a user who tries something out; one that needs more names `Unconfined` itself.
        "seccompDefault": true,
        // The disk also holds the user's other data, and images loaded by hand cannot be pulled
        // again. Images are removed only on request.
        "imageGCHighThresholdPercent": 100,
        // Smaller than a server's: a disk that is nine tenths full is usual on a user's machine.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "3%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "3%",
            "imagefs.inodesFree": "1%",
        },
        // A standalone node needs no kubelet ports, and two nodes would conflict. The API server
        // in this process calls the kubelet server directly.
        "healthzPort": 0,
        "enableServer": false,
    }));
    let root_dir = format!("--root-dir={}", layout.root_dir().display());
    let flags = Flags::parse([root_dir.into()]);
    let settings = config::resolve(&flags, &preset, &host)?;
    let pod_network = up_options.runtime.is_none().then_some(network);
    Ok(PreparedNode { settings, pod_network, up_options })
}

async fn start_containerd(
    layout: &Layout,
    network: &Network,
    lock: &NodeLock,
    say: &impl Fn(&str),
) -> anyhow::Result<String> {
    let containerd = Containerd::new(layout);
    let started = containerd.start(network, lock)?;
    let version = with_progress("waiting for containerd", say, containerd.ready()).await?;
    let how = match started {
        Started::Now => "started",
        Started::Already => "already running",
    };
    say(&format!("containerd {}: {how}", version.runtime_version));
    match containerd.load_pause_image().await? {
        Started::Now => say("sandbox image: loaded"),
        Started::Already => say("sandbox image: already present"),
    }
    Ok(format!("unix://{}", layout.socket().display()))
}

/// Checks a requested port before anything is changed: otherwise the running agent would be stopped
/// for one that cannot start.
fn check_port(layout: &Layout, port: u16, record: &Record) -> anyhow::Result<()> {
    let running = Agent::of(layout).daemon().running()?.is_some();
    if running && api::stored_port(layout) == Some(port) {
        return Ok(());
    }
    let for_pods = record.network.subnet().filter(|_| record.up_options.runtime.is_none());
    let for_pods = for_pods.filter(|_| !record.up_options.no_pod_api);
    api::check_port(port, for_pods.map(Subnet::gateway))
}

/// Waits until the agent's API server reports the node as ready; false if no agent is running.
///
/// A running process is not enough: an agent that was just killed is briefly still in the process
/// table.
async fn is_ready(layout: &Layout) -> anyhow::Result<bool> {
    let agent = Agent::of(layout).daemon();
    let deadline = Instant::now() + READY_TIMEOUT;
    while agent.running()?.is_some() {
        let found = Objects::read(&layout.kubeconfig()).await.ok().and_then(|it| it.node());
        if found.is_some_and(|node| node.ready) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            let (waited, log) = (READY_TIMEOUT.as_secs(), layout.agent_log());
            let log = log.display();
            anyhow::bail!("the node is not ready after {waited} s; see {log}");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
}

/// Awaits `act`, and prints what it is waiting for if that takes long.
async fn with_progress<T>(what: &str, say: &impl Fn(&str), act: impl Future<Output = T>) -> T {
    let mut act = pin!(act);
    tokio::select! { biased;
        done = &mut act => return done,
        () = tokio::time::sleep(PROGRESS_DELAY) => say(what), // `act` is awaited below
    }
    act.await
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    printable(text.lines().last().unwrap_or("its log is empty")).into_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_long_wait_is_reported_and_only_once() {
        for (seconds, want) in [(0, 0), (1, 0), (20, 1)] {
            let said = RefCell::new(Vec::new());
            let say = |text: &str| said.borrow_mut().push(text.to_owned());
            let act = async {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                seconds
            };
            assert_eq!(with_progress("waiting", &say, act).await, seconds);
            assert_eq!(said.into_inner(), vec!["waiting"; want], "{seconds} s");
        }
    }
}
