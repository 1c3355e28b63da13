//! From validated settings to a running node.

mod clean_up;
mod identity;
mod images;
mod users;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use podwright_core::admission::sysctls::Allowed;
use podwright_core::attempts::BackoffLimits;
use podwright_core::cgroup::{self, CgroupConfig, CgroupName, Driver, PIDS, PodPolicy, PodTree};
use podwright_core::config::{
    CgroupVersion, Machine as MachineFacts, NodeFacts, Swap, SwapBehaviour,
};
use podwright_core::node_status::{Amounts, Settings};
use podwright_core::qos::ResourceList;
use podwright_core::quantity::{Format, Quantity};
use podwright_cri::{Client, Endpoint, Kind, Timeouts, Version};
use podwright_host::cgroup::{Cgroups, Owner, systemd::Units};
use podwright_host::clock::Clock;
use podwright_host::files::Root;
use podwright_host::machine::{self, Machine};
use podwright_host::mounts;
use podwright_host::process::{self, Permitted};
use podwright_node::heartbeat::addresses;
use podwright_node::metrics::RequestMetrics;
use podwright_node::node::{Config, Node, Presence, World};
use podwright_node::server::Server;
use podwright_node::sources::url::Remote;
use podwright_proto::cri::CgroupDriver as Told;
use tokio_util::sync::CancellationToken;

use crate::config::KubeletSettings;
use crate::config::kubelet::{KubeletConfiguration, SwapBehavior};
use crate::serving;
use crate::standalone::runtime as shared;

/// What differs between a node in a cluster and one alone on a machine.
pub struct Surroundings {
    /// Where links to container logs go.
    pub log_links: PathBuf,
    /// There is no cluster: the cgroup root is ours to make, and nobody serves DNS for pods.
    pub alone: bool,
    /// The runtime is not the node's own: pods outside of the cgroup root are not ours.
    pub shared_runtime: bool,
    /// The node is about to be stopped: its pods are stopped, and none is started.
    pub stop_pods: bool,
    pub api: Option<ApiClients>,
}

/// Two clients of one server.
#[derive(Clone)]
pub struct ApiClients {
    /// For everything but the next.
    pub main: kube::Client,
    /// For what says that the node lives: with connections of its own, a busy node still says it.
    pub heartbeat: kube::Client,
    /// Where both count their requests, if they do.
    pub requests: Arc<RequestMetrics>,
}

/// Whoever is not root has no business in the folder of all pods.
const ROOT_DIR_MODE: u32 = 0o750;
/// How long to wait for a runtime that is not there yet before saying so.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(1);
/// How often, and how long apart, it is asked for what it must know.
const RUNTIME_TRIES: u32 = 3;
const RUNTIME_RETRY: Duration = Duration::from_secs(2);
/// How long, and how often, the machine is asked for an address it does not have yet.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(10);
const ADDRESS_RETRY: Duration = Duration::from_secs(1);

/// Runs the node until it is told to stop. Containers run on.
pub async fn run(
    settings: &KubeletSettings,
    surroundings: Surroundings,
    on_ready: impl FnOnce(&Arc<Server>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let watchdog = crate::service::watchdog()?;
    let health = health(&settings.configuration, stop.clone()).await?;
    let ports = serving::take_ports(&settings.configuration).await?;
    let (api, stop_pods) = (surroundings.api.clone(), surroundings.stop_pods);
    let node = start(settings, surroundings, stop.clone()).await?;
    let Some(node) = node else { return Ok(()) };
    if stop_pods {
        node.stop_pods();
    }
    let health = tokio::spawn(health);
    let server = serving::server(settings, &node, stop.clone());
    let serving = match ports {
        Some(ports) => {
            Some(serving::listen(settings, ports, &node, api.as_ref().map(|api| &api.main))?)
        }
        None => None,
    };
    let answering = tokio::spawn(server.clone().run(serving));
    on_ready(&server);
    let watched = server.clone();
    crate::service::ready(watchdog, move || watched.is_well());
    let trim = trim_heap_now_and_then();
    tokio::select! {
        () = node.stopped() => {}
        () = trim => {}
    }
    // It ends with the same token; what it still had to say is said.
    let _ = tokio::join!(health, answering);
    tracing::info!("stopped; the containers run on");
    Ok(())
}

/// The health port, taken before anything else: a second agent with the same settings ends here.
async fn health(
    configuration: &KubeletConfiguration,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let port = u16::try_from(configuration.healthz_port).unwrap_or(0);
    let address = SocketAddr::new(configuration.healthz_bind_address, port);
    let serving = match port {
        0 => None,
        _ => Some(podwright_node::health::serve(address, stop).await?),
    };
    Ok(async move {
        if let Some(serving) = serving {
            serving.await;
        }
    })
}

/// The root directory without links on the way to it. The kernel's mount table has paths without
/// links, and a volume of ours is found there by its path.
fn real_root_dir(root_dir: &Path) -> anyhow::Result<PathBuf> {
    Root::create(root_dir, ROOT_DIR_MODE)?;
    let context = || format!("cannot resolve the root directory {}", root_dir.display());
    std::fs::canonicalize(root_dir).with_context(context)
}

/// Without it containers cannot pass mounts on; the others do not mind.
fn share_mounts(root_dir: &Path) {
    if let Err(error) = mounts::ensure_shared(root_dir) {
        let error = format!("{:#}", anyhow::Error::new(error));
        tracing::warn!(error, "mounts below the root folder are private; mountPropagation fails");
    }
}

/// Brings the node up; `None` if it was told to stop before it could.
async fn start(
    settings: &KubeletSettings,
    surroundings: Surroundings,
    stop: CancellationToken,
) -> anyhow::Result<Option<Node>> {
    let configuration = &settings.configuration;
    prepare_process(configuration);
    let endpoint: Endpoint = configuration.container_runtime_endpoint.parse()?;
    let call = configuration.runtime_request_timeout.to_std();
    let mut runtime = Client::new(&endpoint, Timeouts { call });
    if configuration.image_endpoint() != configuration.container_runtime_endpoint {
        runtime = runtime.with_images_at(&configuration.image_endpoint().parse()?);
    }
    let Some(version) = stop.run_until_cancelled(wait_for(&runtime, &endpoint)).await else {
        return Ok(None);
    };
    let version = version?;
    tracing::info!(
        runtime = version.runtime_name,
        version = version.runtime_version,
        "found the runtime"
    );
    if surroundings.shared_runtime {
        if !surroundings.stop_pods {
            check_shared_runtime(&runtime, &configuration.cgroup_root).await?;
        }
        runtime = runtime.shared_with_others(shared::is_own(&configuration.cgroup_root));
    }
    let root_dir = real_root_dir(&settings.options.root_dir)?;
    share_mounts(&root_dir);
    let told = told_driver(&runtime).await?;
    let cgroups = open_cgroups(configuration, told)?;
    join_own_group(configuration, &cgroups).await;
    let root = CgroupName::parse(&configuration.cgroup_root)?;
    if surroundings.alone {
        cgroups.ensure(&root, &CgroupConfig::default()).await?;
    }
    let machine = Machine::at("/");
    let capacity = machine.capacity()?;
    let status = runtime.status().await.ok();
    let handlers = status.map(|status| status.handlers).unwrap_or_default();
    let max_pods = max_pods(configuration, capacity.cpus);
    let identity = identity::identity(settings, max_pods)?;
    let amounts = amounts(&capacity, &root_dir)?;
    let shown = amounts.capacity(max_pods);
    let mut whole = shown.clone();
    if let Some(pids) = most_pids(&machine) {
        whole.insert(PIDS.to_owned(), Quantity::new(pids, Format::DecimalSi));
    }
    identity.reservations.check(&whole)?;
    let alone = surroundings.alone;
    // Whoever needs no API server may need no network, or be about to bring it up.
    let patience =
        if surroundings.api.is_some() && !alone { ADDRESS_PATIENCE } else { Duration::ZERO };
    let found = host_ips(&identity, &machine, patience);
    let Some(host_ips) = stop.run_until_cancelled(found).await else { return Ok(None) };
    let allocatable = identity.reservations.allocatable(&shown);
    let mut facts = facts(settings, alone, host_ips, allocatable, &capacity, &cgroups, handlers)?;
    facts.root_dir = root_dir.to_string_lossy().into_owned();
    let kernel = machine.identity().map(|identity| identity.kernel_version).unwrap_or_default();
    let reservations = &identity.reservations;
    let cpus = capacity.cpu_list.clone();
    let config = Config {
        node_name: settings.node_name.as_str().into(),
        root_dir,
        log_links_dir: surroundings.log_links,
        manifests: manifests(configuration),
        manifest_url: manifest_url(settings)?,
        facts,
        pod_tree: PodTree::below(&root),
        pod_policy: PodPolicy {
            enforce_cpu_quota: configuration.cpu_cfs_quota,
            period_micros: micros(configuration.cpu_cfs_quota_period.to_std()),
            pids_limit: u64::try_from(configuration.pod_pids_limit).ok().filter(|n| *n > 0),
        },
        all_pods: identity::limits_of_pods(configuration, reservations, &whole, cpus),
        reserved: identity::reserved(configuration, reservations, cgroups.driver())?,
        crash_backoff: crash_backoff(configuration),
        images: images::settings(settings)?,
        user_range: users::range(configuration, max_pods),
        gc: clean_up::settings(settings),
        log_rotation: clean_up::log_rotation(configuration)?,
        parallel_starts: usize::try_from(capacity.cpus).unwrap_or(1) * 2,
        identity,
        sysctls: Allowed::new(&kernel, &configuration.allowed_unsafe_sysctls),
        apparmor: machine.has_apparmor(),
        presence: surroundings.api.as_ref().map(|api| Presence {
            client: api.heartbeat.clone(),
            register: configuration.register_node,
            timing: identity::timing(configuration),
            amounts,
        }),
        pod_ranges: configuration.pod_cidr.clone(),
    };
    std::fs::create_dir_all(&config.log_links_dir)?;
    let requests = surroundings.api.as_ref().map(|api| api.requests.clone()).unwrap_or_default();
    let api = surroundings.api.map(|api| api.main);
    let world = World {
        runtime,
        tells_driver: told.is_some(),
        cgroups,
        clock: Clock::real(),
        api,
        requests,
    };
    Ok(Some(Node::start(config, world, version, stop).await?))
}

/// What is asked of the kernel for this process itself. Refusals are told once and lived with.
fn prepare_process(configuration: &KubeletConfiguration) {
    let proc = Path::new("/proc");
    match process::set_own_oom_score_adj(proc, configuration.oom_score_adj) {
        Ok(Permitted::Yes) => {}
        Ok(Permitted::No) => tracing::warn!(
            wanted = configuration.oom_score_adj,
            "the kernel does not let us lower our oom_score_adj (CAP_SYS_RESOURCE is missing)"
        ),
        Err(error) => tracing::warn!(%error, "cannot set oom_score_adj"),
    }
    let files = u64::try_from(configuration.max_open_files).unwrap_or(0);
    if let Err(error) = process::raise_open_files(files) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// `kubeletCgroups`: where what the agent uses is counted and held to limits. It runs without, too.
async fn join_own_group(configuration: &KubeletConfiguration, cgroups: &Cgroups) {
    let path = &configuration.kubelet_cgroups;
    if path.is_empty() {
        return;
    }
    if let Err(error) = cgroups.join(path, std::process::id()).await {
        let error = format!("{:#}", anyhow::Error::new(error));
        tracing::warn!(error, path, "cannot move to the group of kubeletCgroups");
    }
}

/// Waits for the runtime. It may come up after us; one that is up and speaks another language
/// will not learn ours by waiting.
async fn wait_for(runtime: &Client, endpoint: &Endpoint) -> anyhow::Result<Version> {
    let mut told = false;
    let socket = endpoint.path().display();
    loop {
        let asked = async {
            let version = runtime.version().await?;
            runtime.image_fs_info().await.map(|_| version)
        };
        match asked.await {
            Ok(version) => return Ok(version),
            Err(error) if matches!(error.kind, Kind::BadReply | Kind::Unimplemented) => {
                let context = format!("validate CRI v1 runtime API for endpoint {socket}");
                return Err(error).context(context);
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!(%error, %socket, "waiting for the container runtime");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RUNTIME_PATIENCE).await;
    }
}

fn open_cgroups(
    configuration: &KubeletConfiguration,
    told: Option<Told>,
) -> anyhow::Result<Cgroups> {
    let driver = match told {
        Some(Told::Systemd) => Driver::Systemd,
        Some(Told::Cgroupfs) => Driver::Cgroupfs,
        None => match configuration.cgroup_driver {
            crate::config::kubelet::CgroupDriver::Systemd => Driver::Systemd,
            crate::config::kubelet::CgroupDriver::Cgroupfs => Driver::Cgroupfs,
        },
    };
    let owner = match driver {
        Driver::Cgroupfs => Owner::Us,
        Driver::Systemd => Owner::Systemd(Units::system()),
    };
    let table = mounts::table(Path::new("/proc"))?;
    let sizes = machine::hugepage_sizes(Path::new("/"))?;
    Ok(Cgroups::open(&table, Path::new("/sys/fs/cgroup"), owner, sizes)?)
}

/// A runtime that just started may not know yet.
/// What `up` checked before, unless the runtime did not answer then. One that just starts may not
/// list its pods yet.
async fn check_shared_runtime(runtime: &Client, cgroup_root: &str) -> anyhow::Result<()> {
    for _ in 1..RUNTIME_TRIES {
        match shared::refuse_pods_of_others(runtime, cgroup_root).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "cannot use a runtime that is not the node's own, retrying"
            ),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    shared::refuse_pods_of_others(runtime, cgroup_root).await.context("cannot use the runtime")
}

async fn told_driver(runtime: &Client) -> Result<Option<Told>, podwright_cri::Error> {
    for _ in 1..RUNTIME_TRIES {
        match runtime.cgroup_driver().await {
            Ok(driver) => return Ok(driver),
            Err(error) => tracing::warn!(%error, "the runtime does not tell its cgroup driver"),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    runtime.cgroup_driver().await
}

fn facts(
    settings: &KubeletSettings,
    alone: bool,
    host_ips: Vec<IpAddr>,
    allocatable: ResourceList,
    capacity: &machine::Capacity,
    cgroups: &Cgroups,
    handlers: Vec<podwright_proto::cri::RuntimeHandler>,
) -> anyhow::Result<NodeFacts> {
    let configuration = &settings.configuration;
    // Of one that is none, a warning told when the configuration was read.
    let cluster_dns = configuration.cluster_dns.iter().filter_map(|ip| ip.parse().ok()).collect();
    let v2 = cgroups.version() == 2;
    let behaviour = match configuration.memory_swap.swap_behavior {
        Some(SwapBehavior::LimitedSwap) => SwapBehaviour::LimitedSwap,
        Some(SwapBehavior::NoSwap) | None => SwapBehaviour::NoSwap,
    };
    let whole = configuration.cpu_cfs_quota.then(|| configuration.cpu_cfs_quota_period.to_std());
    Ok(NodeFacts {
        host_ips,
        cluster_dns,
        cluster_domain: configuration.cluster_domain.clone(),
        alone,
        resolv_conf: configuration.resolv_conf.clone(),
        root_dir: settings.options.root_dir.to_string_lossy().into_owned(),
        pod_logs_dir: configuration.pod_logs_dir.clone(),
        seccomp_default: configuration.seccomp_default,
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        thermal_paths: thermal_paths(),
        allocatable,
        machine: MachineFacts {
            memory: capacity.memory,
            hugepage_sizes: capacity
                .hugepages
                .keys()
                .map(|bytes| cgroup::hugepage_size_name(*bytes))
                .collect(),
            cgroups: if v2 { CgroupVersion::V2 } else { CgroupVersion::V1 },
            cpu_quota_period: whole.map(micros),
            whole_container_oom: v2 && !configuration.single_process_oom_kill.unwrap_or(false),
            swap: cgroups.limits_swap()?.then_some(Swap { behaviour, total: capacity.swap }),
        },
        handlers,
    })
}

/// The addresses that pods see as their node's. The network of a machine that just started may need
/// a moment.
async fn host_ips(identity: &Settings, machine: &Machine, patience: Duration) -> Vec<IpAddr> {
    let began = tokio::time::Instant::now();
    let found = loop {
        let by_name = addresses::resolve(&identity.hostname).await;
        let found = addresses::find(identity, machine, &by_name);
        let complete = found.as_ref().is_ok_and(|found| !found.is_empty());
        if complete || began.elapsed() >= patience {
            break found;
        }
        tokio::time::sleep(ADDRESS_RETRY).await;
    };
    match found {
        Ok(found) if !found.is_empty() => found,
        Ok(_) => {
            tracing::warn!("this machine has no address but its own; pods see it at 127.0.0.1");
            vec![IpAddr::from([127, 0, 0, 1])]
        }
        // It may come with the network. Until then it is what the node was told to be.
        Err(problem) => {
            tracing::warn!(problem, "the node's address cannot be used yet");
            identity.node_ips.clone()
        }
    }
}

/// What the machine has. Asked once: what is shown of it is what is counted out to pods.
fn amounts(capacity: &machine::Capacity, root_dir: &Path) -> anyhow::Result<Amounts> {
    Ok(Amounts {
        cpus: capacity.cpus,
        memory: capacity.memory,
        swap: capacity.swap,
        hugepages: capacity.hugepages.clone(),
        storage: Some(machine::disk(root_dir)?.capacity),
    })
}

/// How many processes and threads there can be. A machine that does not say does without that
/// limit.
fn most_pids(machine: &Machine) -> Option<i64> {
    let tasks = machine.tasks();
    let tasks = tasks.inspect_err(|error| {
        tracing::warn!(%error, "pods have no common limit of processes");
    });
    let tasks = tasks.ok()?;
    Some(i64::try_from(tasks.pid_max.min(tasks.threads_max)).unwrap_or(i64::MAX))
}

/// Folders that tell how hot the machine is; containers need not know.
fn thermal_paths() -> Vec<String> {
    let Ok(cpus) = std::fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
    let mut paths: Vec<String> = cpus
        .flatten()
        .map(|cpu| cpu.path().join("thermal_throttle"))
        .filter(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    paths.sort();
    paths
}

fn manifests(configuration: &KubeletConfiguration) -> Option<(PathBuf, Duration)> {
    let path = Some(&configuration.static_pod_path).filter(|path| !path.is_empty())?;
    Some((PathBuf::from(path), configuration.file_check_frequency.to_std()))
}

fn manifest_url(settings: &KubeletSettings) -> anyhow::Result<Option<Remote>> {
    let configuration = &settings.configuration;
    if configuration.static_pod_url.is_empty() {
        return Ok(None);
    }
    let url = Uri::from_str(&configuration.static_pod_url).context("staticPodURL")?;
    if url.scheme_str() != Some("http") {
        anyhow::bail!(
            "staticPodURL {url}: only http is served yet; use it on loopback, or a folder"
        );
    }
    let mut headers = HeaderMap::new();
    for (name, values) in &configuration.static_pod_url_header.0 {
        for value in values {
            let name = HeaderName::from_str(name).context("staticPodURLHeader")?;
            headers.append(name, HeaderValue::from_str(value).context("staticPodURLHeader")?);
        }
    }
    let node = settings.node_name.as_str().into();
    let every = configuration.http_check_frequency.to_std();
    Ok(Some(Remote { url, headers, node, every }))
}

fn crash_backoff(configuration: &KubeletConfiguration) -> BackoffLimits {
    match configuration.crash_loop_back_off.max_container_restart_period {
        Some(max) => BackoffLimits::capped(max.to_std()),
        None => BackoffLimits::DEFAULT,
    }
}

fn max_pods(configuration: &KubeletConfiguration, cpus: u32) -> usize {
    let most = usize::try_from(configuration.max_pods).unwrap_or(0);
    let per_core = usize::try_from(configuration.pods_per_core).unwrap_or(0);
    match per_core.saturating_mul(usize::try_from(cpus).unwrap_or(1)) {
        0 => most,
        by_cores => most.min(by_cores),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// glibc keeps what was freed; a node that started a hundred pods gives it back.
async fn trim_heap_now_and_then() {
    const EVERY: Duration = Duration::from_secs(60);
    loop {
        tokio::time::sleep(EVERY).await;
        process::trim_heap();
    }
}
