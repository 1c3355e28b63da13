//! Node agent: builds the node from validated settings and runs it.

mod clean_up;
mod eviction;
mod gates;
mod identity;
mod images;
mod machine;
mod runtime;
mod shutdown;
mod users;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use podwright_api::qos::ResourceList;
use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::cgroup::{self, CgroupConfig, CgroupName, Driver, PodPolicy, PodTree};
use podwright_core::config::{
    CgroupVersion, Machine as MachineFacts, MemoryQos, NodeFacts, Swap, SwapBehaviour,
};
use podwright_core::event::EventRate;
use podwright_core::throttle::RequestLimit;
use podwright_host::cgroup::{Cgroups, Owner, systemd::Units};
use podwright_host::clock::Clock;
use podwright_host::files::Root;
use podwright_host::kernel_log::KERNEL_LOG;
use podwright_host::mounts;
use podwright_host::process::{self, Permitted};
use podwright_host::swap;
use podwright_host::trusted_path;
use podwright_node::client::proxy::Proxy;
use podwright_node::client::system_roots;
use podwright_node::node::{Config, Node, NodeDependencies, Presence};
use podwright_node::report::events::Severity;
use podwright_node::resources::cgroups::node_limits::ProcessGroups;
use podwright_node::server::Server;
use podwright_node::sources::url::{self as manifest_source, ManifestUrl};
use podwright_node::telemetry::metrics::RequestMetrics;
use podwright_proto::cri::CgroupDriver as ReportedDriver;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::KubeletSettings;
use crate::config::kubelet::{KubeletConfiguration, SwapBehavior};
use crate::serving;
use crate::standalone::supervisor::SupervisedRuntime;
use machine::MeasuredMachine;

/// Agent options that differ between a joined and a standalone node.
pub struct AgentOptions {
    /// Directory of the links to container logs.
    pub log_links: PathBuf,
    /// There is no cluster: the agent creates the cgroup root, and there is no cluster DNS.
    pub standalone: bool,
    /// The runtime also serves others: pods outside of the cgroup root are not this node's.
    pub shared_runtime: bool,
    /// Stop all pods and start none, for `podwright down`.
    pub stop_pods: bool,
    pub api: Option<ApiClients>,
    /// The runtime is supervised by this process.
    pub supervised: Option<SupervisedRuntime>,
}

/// An event of a runtime that this process supervises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEvent {
    severity: Severity,
    reason: &'static str,
    message: String,
}

impl RuntimeEvent {
    pub fn normal(reason: &'static str, message: String) -> Self {
        Self { severity: Severity::Normal, reason, message }
    }

    pub fn warning(reason: &'static str, message: String) -> Self {
        Self { severity: Severity::Warning, reason, message }
    }
}

/// Two clients of the same API server.
#[derive(Clone)]
pub struct ApiClients {
    /// For everything but heartbeats.
    pub main: kube::Client,
    /// For leases and node status. Separate connections, so that heartbeats of a busy node are not
    /// delayed.
    pub heartbeat: kube::Client,
    /// Request metrics of both clients.
    pub requests: Arc<RequestMetrics>,
}

/// Other users must not read the directories of pods.
const ROOT_DIR_MODE: u32 = 0o750;
/// How long to wait for an address that the machine does not have yet.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the node until `stop` is cancelled. Containers keep running.
pub async fn run(
    settings: &KubeletSettings,
    mut agent_options: AgentOptions,
    on_ready: impl FnOnce(&Arc<Server>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let supervised = agent_options.supervised.take();
    let (problem, events) = match supervised {
        Some(SupervisedRuntime { problem, events }) => (Some(problem), Some(events)),
        None => (None, None),
    };
    let watchdog = crate::service::watchdog()?;
    let health = health(&settings.configuration, stop.clone()).await?;
    let ports = serving::take_ports(&settings.configuration).await?;
    let (api, stop_pods) = (agent_options.api.clone(), agent_options.stop_pods);
    let node = start(settings, agent_options, problem, stop.clone()).await?;
    let Some(node) = node else { return Ok(()) };
    if let Some(mut events) = events {
        let (recorder, name) = (node.recorder(), settings.node_name.clone());
        tokio::spawn(async move {
            while let Some(RuntimeEvent { severity, reason, message }) = events.recv().await {
                recorder.node(name.as_str(), severity, reason, message);
            }
        });
    }
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
    let server_task = tokio::spawn(server.clone().run(serving));
    on_ready(&server);
    let watched = server.clone();
    crate::service::ready(watchdog, move || watched.is_healthy());
    let trim = trim_heap_periodically();
    tokio::select! {
        () = node.stopped() => {}
        () = trim => {}
    }
    // Both end with the same token; pending responses are still sent.
    let _ = tokio::join!(health, server_task);
    tracing::info!("agent stopped, containers keep running");
    Ok(())
}

/// Binds the health port before anything else: a second agent with the same settings fails here.
async fn health(
    configuration: &KubeletConfiguration,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let port = u16::try_from(configuration.healthz_port).unwrap_or(0);
    let address = SocketAddr::new(configuration.healthz_bind_address, port);
    let serving = match port {
        0 => None,
        _ => Some(podwright_node::server::health_port::serve(address, stop).await?),
    };
    Ok(async move {
        if let Some(serving) = serving {
            serving.await;
        }
    })
}

/// The root directory with symbolic links resolved. Volumes are found in the kernel's mount table
/// by path, and paths there contain no links.
fn real_root_dir(root_dir: &Path) -> anyhow::Result<PathBuf> {
    Root::create(root_dir, ROOT_DIR_MODE)?;
    let context = || format!("cannot resolve the root directory {}", root_dir.display());
    let real = std::fs::canonicalize(root_dir).with_context(context)?;
    // It names what is mounted, unmounted and run as root.
    match trusted_path::check_directory(root_dir) {
        Ok(()) => {}
        Err(error) if error.path() == real => {
            return Err(error).context("the root directory is not used");
        }
        // Earlier builds used it, and its owner may be the owner of this machine.
        Err(error) => tracing::warn!(
            %error,
            "another user can replace the root directory, and so become root"
        ),
    }
    Ok(real)
}

/// Makes the root directory a shared mount, which only `mountPropagation` needs.
fn share_mounts(root_dir: &Path) {
    if let Err(error) = mounts::ensure_shared(root_dir) {
        let error = format!("{:#}", anyhow::Error::new(error));
        tracing::warn!(
            error,
            "cannot share mounts below the root directory, mountPropagation does not work"
        );
    }
}

/// Starts the node; `None` if it was stopped before.
async fn start(
    settings: &KubeletSettings,
    agent_options: AgentOptions,
    runtime_problem: Option<watch::Receiver<Option<String>>>,
    stop: CancellationToken,
) -> anyhow::Result<Option<Node>> {
    let configuration = &settings.configuration;
    prepare_process(configuration);
    let connected = runtime::connect(configuration, &agent_options);
    let Some(connected) = stop.run_until_cancelled(connected).await else { return Ok(None) };
    let (runtime, version) = connected?;
    let root_dir = real_root_dir(&settings.options.root_dir)?;
    share_mounts(&root_dir);
    let reported_driver = runtime::reported_driver(&runtime).await?;
    let cgroups = open_cgroups(configuration, reported_driver)?;
    join_own_group(configuration, &cgroups).await;
    let root = CgroupName::parse(&configuration.cgroup_root)?;
    if agent_options.standalone {
        cgroups.ensure(&root, &CgroupConfig::default()).await?;
    }
    let handlers = runtime.status().await.map(|status| status.handlers).unwrap_or_default();
    let measured = MeasuredMachine::measure(settings, &root_dir)?;
    // A node without an API server may need no network, or set it up with its own pods.
    let needs_address = agent_options.api.is_some() && !agent_options.standalone;
    let timeout = if needs_address { ADDRESS_TIMEOUT } else { Duration::ZERO };
    let found = measured.host_ips(timeout);
    let Some(host_ips) = stop.run_until_cancelled(found).await else { return Ok(None) };
    let mut facts =
        facts(settings, agent_options.standalone, host_ips, &measured, &cgroups, handlers)?;
    facts.root_dir = root_dir.to_string_lossy().into_owned();
    let config =
        config(settings, &agent_options, root_dir, facts, measured, cgroups.driver()).await?;
    std::fs::create_dir_all(&config.log_links_dir)?;
    let requests = agent_options.api.as_ref().map(|api| api.requests.clone()).unwrap_or_default();
    let api = agent_options.api.map(|api| api.main);
    let dependencies = NodeDependencies {
        runtime,
        reports_cgroup_driver: reported_driver.is_some(),
        cgroups,
        clock: Clock::real(),
        api,
        requests,
        runtime_problem,
    };
    Ok(Some(Node::start(config, dependencies, version, stop).await?))
}

/// The configuration of the node.
async fn config(
    settings: &KubeletSettings,
    agent_options: &AgentOptions,
    root_dir: PathBuf,
    facts: NodeFacts,
    measured: MeasuredMachine,
    driver: Driver,
) -> anyhow::Result<Config> {
    let configuration = &settings.configuration;
    let MeasuredMachine { machine, capacity, max_pods, identity, amounts, whole, .. } = measured;
    let root = CgroupName::parse(&configuration.cgroup_root)?;
    let kernel = machine.identity().map(|identity| identity.kernel_version).unwrap_or_default();
    let reservations = &identity.reservations;
    let cpus = capacity.cpu_list.clone();
    Ok(Config {
        node_name: settings.node_name.as_str().into(),
        root_dir,
        log_links_dir: agent_options.log_links.clone(),
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
        memory_reserve: identity::memory_reserve(settings, reservations, &whole),
        process_groups: process_groups(configuration),
        reserved: identity::reserved(configuration, reservations, driver)?,
        crash_backoff: gates::crash_backoff(configuration, &settings.gates),
        features: gates::pod_features(&settings.gates),
        resync: resync(configuration),
        images: images::settings(settings)?,
        user_range: users::range(configuration, max_pods).await?,
        gc: clean_up::settings(settings),
        eviction: eviction::settings(configuration, agent_options.standalone)?,
        volume_period: configuration.volume_stats_agg_period.to_std(),
        log_rotation: clean_up::log_rotation(configuration)?,
        parallel_starts: usize::try_from(capacity.cpus).unwrap_or(1) * 2,
        identity,
        sysctls: AllowedSysctls::new(&kernel, &configuration.allowed_unsafe_sysctls),
        apparmor: machine.has_apparmor(),
        presence: agent_options.api.as_ref().map(|api| Presence {
            client: api.heartbeat.clone(),
            register: configuration.register_node,
            timing: identity::timing(configuration),
            amounts,
        }),
        event_rate: EventRate {
            per_second: u32::try_from(configuration.event_record_qps).unwrap_or(0),
            burst: u32::try_from(configuration.event_burst).unwrap_or(0),
        },
        // The embedded API server is in this process: a limit would only delay.
        request_limit: match agent_options.standalone {
            true => RequestLimit::NONE,
            false => RequestLimit {
                per_second: u32::try_from(configuration.kube_api_qps).unwrap_or(0),
                burst: u32::try_from(configuration.kube_api_burst).unwrap_or(0),
            },
        },
        pod_ranges: configuration.pod_cidr.clone(),
        packet_filter: (agent_options.api.is_some()
            && !agent_options.standalone
            && configuration.make_iptables_util_chains)
            .then(|| trusted_path::PROGRAM_DIRECTORIES.map(PathBuf::from).to_vec()),
        shutdown: shutdown::settings(configuration, &settings.gates),
        swaps_volumes: swaps_volumes(),
        kernel_log: Some(PathBuf::from(KERNEL_LOG)),
    })
}

/// Sets oom_score_adj and the file limit of this process. Failures are logged and tolerated.
fn prepare_process(configuration: &KubeletConfiguration) {
    let proc = Path::new("/proc");
    match process::set_own_oom_score_adj(proc, configuration.oom_score_adj) {
        Ok(Permitted::Yes) => {}
        Ok(Permitted::No) => tracing::warn!(
            wanted = configuration.oom_score_adj,
            "cannot lower oom_score_adj of the agent, CAP_SYS_RESOURCE is missing"
        ),
        Err(error) => tracing::warn!(%error, "cannot set oom_score_adj of the agent"),
    }
    let files = u64::try_from(configuration.max_open_files).unwrap_or(0);
    if let Err(error) = process::raise_open_files(files) {
        tracing::warn!(%error, "cannot raise the open file limit");
    }
}

/// Moves the agent to the cgroup of `kubeletCgroups`, for accounting and limits. Failure is
/// tolerated.
async fn join_own_group(configuration: &KubeletConfiguration, cgroups: &Cgroups) {
    let path = &configuration.kubelet_cgroups;
    if path.is_empty() {
        return;
    }
    if let Err(error) = cgroups.join(path, std::process::id()).await {
        let error = format!("{:#}", anyhow::Error::new(error));
        tracing::warn!(error, path, "cannot move the agent to the cgroup of kubeletCgroups");
    }
}

/// Whether secrets in memory may be written to a swap device. What cannot be found out counts as
/// yes.
fn swaps_volumes() -> bool {
    let unknown = |error: std::io::Error| {
        tracing::warn!(%error, "cannot tell whether memory-backed volumes may be swapped");
    };
    match swap::is_on(Path::new("/proc")).map_err(unknown) {
        Ok(false) => false,
        Ok(true) => !swap::tmpfs_has_noswap().map_err(unknown).unwrap_or(false),
        Err(()) => true,
    }
}

fn process_groups(configuration: &KubeletConfiguration) -> ProcessGroups {
    let set = |path: &String| Some(path.clone()).filter(|path| !path.is_empty());
    ProcessGroups {
        system: set(&configuration.system_cgroups),
        agent: set(&configuration.kubelet_cgroups),
    }
}

fn open_cgroups(
    configuration: &KubeletConfiguration,
    reported: Option<ReportedDriver>,
) -> anyhow::Result<Cgroups> {
    let driver = match reported {
        Some(ReportedDriver::Systemd) => Driver::Systemd,
        Some(ReportedDriver::Cgroupfs) => Driver::Cgroupfs,
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
    let sizes = podwright_host::machine::hugepage_sizes(Path::new("/"))?;
    Ok(Cgroups::open(&table, Path::new("/sys/fs/cgroup"), owner, sizes)?)
}

fn facts(
    settings: &KubeletSettings,
    standalone: bool,
    host_ips: Vec<IpAddr>,
    measured: &MeasuredMachine,
    cgroups: &Cgroups,
    handlers: Vec<podwright_proto::cri::RuntimeHandler>,
) -> anyhow::Result<NodeFacts> {
    let (configuration, capacity) = (&settings.configuration, &measured.capacity);
    // Invalid addresses are reported as warnings when the configuration is read.
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
        standalone,
        resolv_conf: configuration.resolv_conf.clone(),
        root_dir: settings.options.root_dir.to_string_lossy().into_owned(),
        pod_logs_dir: configuration.pod_logs_dir.clone(),
        seccomp_default: configuration.seccomp_default,
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        thermal_paths: thermal_paths(),
        allocatable: measured.allocatable(),
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
            memory_qos: (v2 && settings.gates.enabled("MemoryQoS"))
                .then(|| memory_qos(configuration, &measured.allocatable())),
        },
        handlers,
    })
}

fn memory_qos(configuration: &KubeletConfiguration, allocatable: &ResourceList) -> MemoryQos {
    const MILLION: f64 = 1e6;
    // The factor is from 0 to 1.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let factor = (configuration.memory_throttling_factor * MILLION).round() as u32;
    let memory = allocatable.get("memory").map_or(0, |memory| memory.unsigned_value());
    MemoryQos { factor, allocatable: memory, page: page_size() }
}

fn page_size() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

/// Directories with thermal information of the machine, masked in containers.
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

fn manifest_url(settings: &KubeletSettings) -> anyhow::Result<Option<ManifestUrl>> {
    let configuration = &settings.configuration;
    if configuration.static_pod_url.is_empty() {
        return Ok(None);
    }
    let url = Uri::from_str(&configuration.static_pod_url).context("staticPodURL")?;
    let (url, authorization) = manifest_source::split_credentials(url)
        .context("staticPodURL: invalid user or password")?;
    if manifest_source::is_exposed(&url) {
        tracing::warn!(
            %url,
            "staticPodURL uses plain http: a machine on the network path can run any pod on this \
             node. Fix: use https"
        );
    }
    let is_secure = url.scheme_str() == Some("https");
    let tls = match is_secure {
        true => Some(manifest_source::tls(system_roots::load()).context("staticPodURL")?),
        false => None,
    };
    let (host, port) = (manifest_source::host(&url), manifest_source::port(&url));
    let proxy =
        Proxy::from_environment(is_secure, host, port, &[], |name| std::env::var(name).ok())
            .context("staticPodURL")?;
    let mut headers = HeaderMap::new();
    for (name, values) in &configuration.static_pod_url_header.0 {
        for value in values {
            let name = HeaderName::from_str(name).context("staticPodURLHeader")?;
            headers.append(name, HeaderValue::from_str(value).context("staticPodURLHeader")?);
        }
    }
    if let Some(authorization) = authorization {
        // As in Go, a header that is set takes precedence.
        headers.entry(AUTHORIZATION).or_insert(authorization);
    }
    let node = settings.node_name.as_str().into();
    let every = configuration.http_check_frequency.to_std();
    let features = gates::pod_features(&settings.gates);
    Ok(Some(ManifestUrl { url, headers, node, every, features, tls, proxy }))
}

/// `syncFrequency` where it is set. Upstream's default of one minute makes up for wake-ups that this
/// agent does not lose; as a safety net, five times as long will do.
fn resync(configuration: &KubeletConfiguration) -> Duration {
    let (set, default) =
        (configuration.sync_frequency, KubeletConfiguration::default().sync_frequency);
    if set == default { 5 * default.to_std() } else { set.to_std() }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns freed memory to the kernel, which glibc keeps, for example after starting many pods.
async fn trim_heap_periodically() {
    const EVERY: Duration = Duration::from_secs(60);
    loop {
        tokio::time::sleep(EVERY).await;
        process::trim_heap();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn root_directory_that_another_user_can_change_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let root = above.path().join("kubelet");
        real_root_dir(&root).unwrap();
        std::fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
        let refused = format!("{:#}", real_root_dir(&root).unwrap_err());
        assert!(refused.contains("other users can write to"), "{refused}");
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(above.path(), Some(1000), None).unwrap();
            assert_eq!(real_root_dir(&root).unwrap(), root.canonicalize().unwrap());
            std::os::unix::fs::chown(above.path(), Some(0), None).unwrap();
            std::os::unix::fs::chown(&root, Some(1000), None).unwrap();
            let refused = format!("{:#}", real_root_dir(&root).unwrap_err());
            assert!(refused.contains("belongs to user 1000"), "{refused}");
        }
    }

    #[test]
    fn linked_root_directory_is_used_by_its_real_path() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("data")).unwrap();
        std::os::unix::fs::symlink("data", base.join("lib")).unwrap();
        let found = real_root_dir(&base.join("lib/kubelet")).unwrap();
        assert_eq!(found, base.join("data/kubelet"));
        std::os::unix::fs::symlink("data/kubelet", base.join("root")).unwrap();
        assert_eq!(real_root_dir(&base.join("root")).unwrap(), base.join("data/kubelet"));
    }
}
