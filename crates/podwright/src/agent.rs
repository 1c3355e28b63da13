//! Node agent: builds the node from validated settings and runs it.

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
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use podwright_api::qos::ResourceList;
use podwright_api::quantity::{Format, Quantity};
use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::attempts::BackoffLimits;
use podwright_core::cgroup::{self, CgroupConfig, CgroupName, Driver, PIDS, PodPolicy, PodTree};
use podwright_core::config::{
    CgroupVersion, Machine as MachineFacts, NodeFacts, Swap, SwapBehaviour,
};
use podwright_core::event::EventRate;
use podwright_core::node_status::addresses::LOOPBACK;
use podwright_core::node_status::{MachineResources, Settings};
use podwright_core::throttle::RequestLimit;
use podwright_cri::{Client, Endpoint, Kind, Timeouts, Version};
use podwright_host::cgroup::{Cgroups, Owner, systemd::Units};
use podwright_host::clock::Clock;
use podwright_host::files::Root;
use podwright_host::machine::{self, Machine};
use podwright_host::mounts;
use podwright_host::process::{self, Permitted};
use podwright_host::trusted_path;
use podwright_node::client::proxy::Proxy;
use podwright_node::client::system_roots;
use podwright_node::node::{Config, Node, NodeDependencies, Presence};
use podwright_node::report::heartbeat::addresses;
use podwright_node::server::Server;
use podwright_node::sources::url::{self as manifest_source, ManifestUrl};
use podwright_node::telemetry::metrics::RequestMetrics;
use podwright_proto::cri::CgroupDriver as ReportedDriver;
use tokio_util::sync::CancellationToken;

use crate::config::KubeletSettings;
use crate::config::kubelet::{KubeletConfiguration, SwapBehavior};
use crate::serving;
use crate::standalone::runtime as shared;

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
/// Delay between attempts to connect to a runtime that is not available yet.
const RUNTIME_POLL: Duration = Duration::from_secs(1);
/// Attempts, and the delay between them, of calls that fail while the runtime is starting.
const RUNTIME_ATTEMPTS: u32 = 3;
const RUNTIME_RETRY: Duration = Duration::from_secs(2);
/// How long, and how often, to check for an address that the machine does not have yet.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
const ADDRESS_RETRY: Duration = Duration::from_secs(1);

/// Runs the node until `stop` is cancelled. Containers keep running.
pub async fn run(
    settings: &KubeletSettings,
    agent_options: AgentOptions,
    on_ready: impl FnOnce(&Arc<Server>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let watchdog = crate::service::watchdog()?;
    let health = health(&settings.configuration, stop.clone()).await?;
    let ports = serving::take_ports(&settings.configuration).await?;
    let (api, stop_pods) = (agent_options.api.clone(), agent_options.stop_pods);
    let node = start(settings, agent_options, stop.clone()).await?;
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
    // It names what is mounted, unmounted and run as root.
    trusted_path::check_directory(root_dir).context("the root directory is not used")?;
    let context = || format!("cannot resolve the root directory {}", root_dir.display());
    std::fs::canonicalize(root_dir).with_context(context)
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
        "connected to container runtime"
    );
    if agent_options.shared_runtime {
        if !agent_options.stop_pods {
            check_shared_runtime(&runtime, &configuration.cgroup_root).await?;
        }
        runtime = runtime.shared_with_others(shared::is_own(&configuration.cgroup_root));
    }
    let root_dir = real_root_dir(&settings.options.root_dir)?;
    share_mounts(&root_dir);
    let reported_driver = reported_driver(&runtime).await?;
    let cgroups = open_cgroups(configuration, reported_driver)?;
    join_own_group(configuration, &cgroups).await;
    let root = CgroupName::parse(&configuration.cgroup_root)?;
    if agent_options.standalone {
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
    if let Some(pids) = max_pids(&machine) {
        whole.insert(PIDS.to_owned(), Quantity::new(pids, Format::DecimalSi));
    }
    identity.reservations.check(&whole)?;
    let standalone = agent_options.standalone;
    // A node without an API server may need no network, or set it up with its own pods.
    let timeout =
        if agent_options.api.is_some() && !standalone { ADDRESS_TIMEOUT } else { Duration::ZERO };
    let found = host_ips(&identity, &machine, timeout);
    let Some(host_ips) = stop.run_until_cancelled(found).await else { return Ok(None) };
    let allocatable = identity.reservations.allocatable(&shown);
    let mut facts =
        facts(settings, standalone, host_ips, allocatable, &capacity, &cgroups, handlers)?;
    facts.root_dir = root_dir.to_string_lossy().into_owned();
    let kernel = machine.identity().map(|identity| identity.kernel_version).unwrap_or_default();
    let reservations = &identity.reservations;
    let cpus = capacity.cpu_list.clone();
    let config = Config {
        node_name: settings.node_name.as_str().into(),
        root_dir,
        log_links_dir: agent_options.log_links,
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
        resync: resync(configuration),
        images: images::settings(settings)?,
        user_range: users::range(configuration, max_pods).await?,
        gc: clean_up::settings(settings),
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
        request_limit: match standalone {
            true => RequestLimit::NONE,
            false => RequestLimit {
                per_second: u32::try_from(configuration.kube_api_qps).unwrap_or(0),
                burst: u32::try_from(configuration.kube_api_burst).unwrap_or(0),
            },
        },
        pod_ranges: configuration.pod_cidr.clone(),
        packet_filter: (agent_options.api.is_some()
            && !standalone
            && configuration.make_iptables_util_chains)
            .then(|| trusted_path::PROGRAM_DIRECTORIES.map(PathBuf::from).to_vec()),
    };
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
    };
    Ok(Some(Node::start(config, dependencies, version, stop).await?))
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

/// Waits for the runtime, which may start after the agent. A runtime that does not implement CRI v1
/// is an error, because waiting does not help.
async fn wait_for(runtime: &Client, endpoint: &Endpoint) -> anyhow::Result<Version> {
    let mut logged = false;
    let socket = endpoint.path().display();
    loop {
        let probe = async {
            let version = runtime.version().await?;
            runtime.image_fs_info().await.map(|_| version)
        };
        match probe.await {
            Ok(version) => return Ok(version),
            Err(error) if matches!(error.kind, Kind::BadReply | Kind::Unimplemented) => {
                let context = format!("validate CRI v1 runtime API for endpoint {socket}");
                return Err(error).context(context);
            }
            Err(error) if !logged => {
                logged = true;
                tracing::warn!(%error, %socket, "waiting for the container runtime");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RUNTIME_POLL).await;
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
    let sizes = machine::hugepage_sizes(Path::new("/"))?;
    Ok(Cgroups::open(&table, Path::new("/sys/fs/cgroup"), owner, sizes)?)
}

/// Repeats the check of `up`, which is skipped there if the runtime does not respond. Retries,
/// because a runtime that is starting may not list its pods yet.
async fn check_shared_runtime(runtime: &Client, cgroup_root: &str) -> anyhow::Result<()> {
    for _ in 1..RUNTIME_ATTEMPTS {
        match shared::refuse_pods_of_others(runtime, cgroup_root).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "cannot use the shared container runtime, retrying"
            ),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    shared::refuse_pods_of_others(runtime, cgroup_root).await.context("cannot use the runtime")
}

/// The cgroup driver that the runtime reports; none if it does not support the request.
async fn reported_driver(runtime: &Client) -> Result<Option<ReportedDriver>, podwright_cri::Error> {
    for _ in 1..RUNTIME_ATTEMPTS {
        match runtime.cgroup_driver().await {
            Ok(driver) => return Ok(driver),
            Err(error) => {
                tracing::warn!(%error, "cannot read the cgroup driver of the runtime, retrying");
            }
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    runtime.cgroup_driver().await
}

fn facts(
    settings: &KubeletSettings,
    standalone: bool,
    host_ips: Vec<IpAddr>,
    allocatable: ResourceList,
    capacity: &machine::Capacity,
    cgroups: &Cgroups,
    handlers: Vec<podwright_proto::cri::RuntimeHandler>,
) -> anyhow::Result<NodeFacts> {
    let configuration = &settings.configuration;
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

/// The node's addresses in `status.hostIPs` of pods. Waits up to `timeout`, because the network of
/// a machine that has just booted may not be up yet.
async fn host_ips(identity: &Settings, machine: &Machine, timeout: Duration) -> Vec<IpAddr> {
    let began = tokio::time::Instant::now();
    let found = loop {
        let by_name = addresses::resolve(&identity.hostname).await;
        let found = addresses::find(identity, machine, &by_name);
        let complete = found.as_ref().is_ok_and(|found| !found.is_empty());
        if complete || began.elapsed() >= timeout {
            break found;
        }
        tokio::time::sleep(ADDRESS_RETRY).await;
    };
    match found {
        Ok(found) if !found.is_empty() => found,
        Ok(_) => {
            tracing::warn!(
                "no address but loopback found yet, using 127.0.0.1 as the host IP of pods until then"
            );
            vec![LOOPBACK]
        }
        // It may come up with the network. Until then the configured address is used.
        Err(problem) => {
            tracing::warn!(problem, "cannot use the node address yet");
            identity.node_ips.clone()
        }
    }
}

/// Capacity of the machine. Read once, so that reported and enforced capacity are the same.
fn amounts(capacity: &machine::Capacity, root_dir: &Path) -> anyhow::Result<MachineResources> {
    Ok(MachineResources {
        cpus: capacity.cpus,
        memory: capacity.memory,
        swap: capacity.swap,
        hugepages: capacity.hugepages.clone(),
        storage: Some(machine::disk(root_dir)?.capacity),
    })
}

/// Maximum number of processes and threads; none if it cannot be read.
fn max_pids(machine: &Machine) -> Option<i64> {
    let tasks = machine.tasks();
    let tasks = tasks.inspect_err(|error| {
        tracing::warn!(%error, "cannot read the pid limit, pods share no pid limit");
    });
    let tasks = tasks.ok()?;
    Some(i64::try_from(tasks.pid_max.min(tasks.threads_max)).unwrap_or(i64::MAX))
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
    Ok(Some(ManifestUrl { url, headers, node, every, tls, proxy }))
}

fn crash_backoff(configuration: &KubeletConfiguration) -> BackoffLimits {
    match configuration.crash_loop_back_off.max_container_restart_period {
        Some(max) => BackoffLimits::capped(max.to_std()),
        None => BackoffLimits::DEFAULT,
    }
}

/// `syncFrequency` where it is set. Upstream's default of one minute makes up for wake-ups that this
/// agent does not lose; as a safety net, five times as long will do.
fn resync(configuration: &KubeletConfiguration) -> Duration {
    let (set, default) =
        (configuration.sync_frequency, KubeletConfiguration::default().sync_frequency);
    if set == default { 5 * default.to_std() } else { set.to_std() }
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
            std::os::unix::fs::chown(&root, Some(1000), None).unwrap();
            let refused = format!("{:#}", real_root_dir(&root).unwrap_err());
            assert!(refused.contains("belongs to user 1000"), "{refused}");
        }
    }
}
