//! Cgroups managed by systemd.
//!
//! Where systemd is the init system it treats every cgroup as one of its units, and may reset or
//! remove groups that it does not manage. So each of our groups is a transient slice, created and
//! configured over D-Bus; the kernel's files are then written as well, for settings without a
//! systemd property.
//!
//! systemd acknowledges a request at once and carries it out later; a signal that names the job
//! reports the result. We wait for that signal, with a time limit.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use podwright_core::cgroup::{CgroupConfig, CgroupName, CpuQuota, weight_from_shares};
use tokio::sync::Mutex;
use zbus::connection::Builder;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedObjectPath, Variant};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// systemd's private socket: for early boot, when there is no bus, and for machines without one.
const PRIVATE_SOCKET: &str = "/run/systemd/private";
/// systemd's value for no limit.
const INFINITY: u64 = u64::MAX;

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        auxiliary: &[(&str, Vec<(&str, Variant<'_>)>)],
    ) -> zbus::Result<OwnedObjectPath>;

    fn set_unit_properties(
        &self,
        name: &str,
        runtime: bool,
        properties: &[(&str, Variant<'_>)],
    ) -> zbus::Result<()>;

    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;

    fn subscribe(&self) -> zbus::Result<()>;

    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;

    #[zbus(property)]
    fn version(&self) -> zbus::Result<String>;
}

/// systemd's units that are our cgroups.
#[derive(Debug)]
pub struct Units {
    bus: Bus,
    /// Connected on first use, and again after it broke.
    session: Mutex<Option<Session>>,
}

#[derive(Debug)]
enum Bus {
    /// The system bus or, if there is none, systemd's private socket.
    System,
    /// A socket on which systemd itself is the peer.
    Peer(PathBuf),
}

#[derive(Clone, Debug)]
struct Session {
    manager: ManagerProxy<'static>,
    version: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error(
        "cannot reach systemd over D-Bus; check that it is running and that podwright runs as root"
    )]
    Connect { source: Box<zbus::Error> },
    #[error("systemd did not {attempt} unit {unit}")]
    Call { attempt: &'static str, unit: String, source: Box<zbus::Error> },
    #[error("systemd tried to {attempt} unit {unit}, with the result {result:?}; see its log")]
    Job { attempt: &'static str, unit: String, result: String },
    #[error("systemd did not {attempt} unit {unit} within {}s", CALL_TIMEOUT.as_secs())]
    Timeout { attempt: &'static str, unit: String },
    #[error("{cpus:?} is not a list of CPUs such as 0-3,8")]
    CpuList { cpus: String },
}

type Properties<'a> = Vec<(&'static str, Variant<'a>)>;

impl Units {
    /// Units of this machine.
    pub fn system() -> Self {
        Self { bus: Bus::System, session: Mutex::new(None) }
    }

    /// Units of a manager that listens on a socket of its own.
    pub fn at_socket(path: impl Into<PathBuf>) -> Self {
        Self { bus: Bus::Peer(path.into()), session: Mutex::new(None) }
    }

    /// Starts the slice of a group if it does not exist.
    pub(super) async fn start(
        &self,
        name: &CgroupName,
        cgroup_version: u32,
    ) -> Result<(), UnitError> {
        let parent = name.parent().unwrap_or(CgroupName::ROOT).slice();
        let description = format!("Podwright group {name}");
        self.send_request(&name.slice(), &Request::Start { parent, description, cgroup_version })
            .await
    }

    /// Sets `config` on a slice; returns the values for the kernel's files, since systemd supports
    /// quotas only in whole per cent.
    pub(super) async fn set(
        &self,
        name: &CgroupName,
        mut config: CgroupConfig,
        cgroup_version: u32,
    ) -> Result<CgroupConfig, UnitError> {
        config.cpu_quota = config.cpu_quota.map(in_whole_percent);
        // All groups are below the root; its slice takes no limits.
        if name.is_root() {
            return Ok(config);
        }
        let cpus = match &config.cpus {
            Some(list) => match cpu_mask(list) {
                Some(mask) => Some(mask),
                None => return Err(UnitError::CpuList { cpus: list.clone() }),
            },
            None => None,
        };
        self.send_request(&name.slice(), &Request::Set { config: &config, cpus, cgroup_version })
            .await?;
        Ok(config)
    }

    /// Stops the slice; no error if there is none.
    pub(super) async fn stop(&self, name: &CgroupName) -> Result<(), UnitError> {
        self.send_request(&name.slice(), &Request::Stop).await
    }

    /// Sends one request, in bounded time. If the connection turns out to be broken, retries once
    /// on a new one: systemd or its bus was restarted.
    async fn send_request(&self, unit: &str, request: &Request<'_>) -> Result<(), UnitError> {
        let attempt = request.attempt();
        let limited = tokio::time::timeout(CALL_TIMEOUT, async {
            let mut result = self.session().await?.carry_out(unit, request).await;
            if matches!(result, Ok(Done::ConnectionLost)) || result.as_ref().is_err_and(is_broken) {
                *self.session.lock().await = None;
                result = self.session().await?.carry_out(unit, request).await;
            }
            let unit = unit.to_owned();
            match result {
                Ok(Done::Already) => Ok(()),
                Ok(Done::Job(result)) if result == "done" || result == "skipped" => Ok(()),
                Ok(Done::Job(result)) => Err(UnitError::Job { attempt, unit, result }),
                Ok(Done::ConnectionLost) => {
                    let result = "the connection was lost".to_owned();
                    Err(UnitError::Job { attempt, unit, result })
                }
                Err(error) => Err(UnitError::Call { attempt, unit, source: Box::new(error) }),
            }
        });
        match limited.await {
            Ok(result) => result,
            Err(_) => Err(UnitError::Timeout { attempt, unit: unit.to_owned() }),
        }
    }

    async fn session(&self) -> Result<Session, UnitError> {
        let mut session = self.session.lock().await;
        match &*session {
            Some(session) => Ok(session.clone()),
            None => {
                let made = self
                    .connect()
                    .await
                    .map_err(|error| UnitError::Connect { source: Box::new(error) })?;
                Ok(session.insert(made).clone())
            }
        }
    }

    async fn connect(&self) -> zbus::Result<Session> {
        let connection = match &self.bus {
            Bus::Peer(path) => peer(path.clone()).await?,
            Bus::System => match Connection::system().await {
                Ok(connection) => connection,
                Err(error) => match peer(PRIVATE_SOCKET.into()).await {
                    Ok(connection) => connection,
                    Err(_) => return Err(error), // the first error says more
                },
            },
        };
        let manager = ManagerProxy::builder(&connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        // Without it a bus sends no signals; on the private socket they are always sent.
        manager.subscribe().await?;
        let version = parse_version(&manager.version().await?);
        Ok(Session { manager, version })
    }
}

async fn peer(path: PathBuf) -> zbus::Result<Connection> {
    let stream = tokio::net::UnixStream::connect(path).await?;
    Builder::unix_stream(stream.into_std()?).p2p().build().await
}

/// A request to systemd for one unit.
enum Request<'a> {
    Start { parent: String, description: String, cgroup_version: u32 },
    Set { config: &'a CgroupConfig, cpus: Option<Vec<u8>>, cgroup_version: u32 },
    Stop,
}

impl Request<'_> {
    fn attempt(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Set { .. } => "set the limits of",
            Self::Stop => "stop",
        }
    }
}

enum Done {
    /// There was nothing to wait for.
    Already,
    /// A job ended with this result.
    Job(String),
    ConnectionLost,
}

impl Session {
    async fn carry_out(&self, unit: &str, request: &Request<'_>) -> zbus::Result<Done> {
        match request {
            Request::Start { parent, description, cgroup_version } => {
                self.start(unit, parent, description, *cgroup_version).await
            }
            Request::Set { config, cpus, cgroup_version } => {
                let properties = properties(config, cpus.as_deref(), *cgroup_version, self.version);
                if !properties.is_empty() {
                    self.manager.set_unit_properties(unit, true, &properties).await?;
                }
                Ok(Done::Already)
            }
            Request::Stop => self.stop(unit).await,
        }
    }

    async fn start(
        &self,
        unit: &str,
        parent: &str,
        description: &str,
        cgroup_version: u32,
    ) -> zbus::Result<Done> {
        let io_accounting = if cgroup_version == 1 { "BlockIOAccounting" } else { "IOAccounting" };
        let properties = [
            ("Description", Variant::from(description)),
            // A slice is placed below its parent by its name; this keeps the parent while it
            // exists.
            ("Wants", Variant::from(vec![parent])),
            ("MemoryAccounting", Variant::from(true)),
            ("CPUAccounting", Variant::from(true)),
            (io_accounting, Variant::from(true)),
            ("TasksAccounting", Variant::from(true)),
            ("DefaultDependencies", Variant::from(false)),
        ];
        // Subscribe first: the job may be finished before the reply with its name arrives.
        let jobs = self.manager.receive_job_removed().await?;
        let request = self.manager.start_transient_unit(unit, "replace", &properties, &[]);
        match job_done(jobs, request).await {
            Ok(done) => Ok(done),
            Err(error) if is_error(&error, "UnitExists") => Ok(Done::Already),
            Err(error) => Err(error),
        }
    }

    async fn stop(&self, unit: &str) -> zbus::Result<Done> {
        let jobs = self.manager.receive_job_removed().await?;
        let done = match job_done(jobs, self.manager.stop_unit(unit, "replace")).await {
            Ok(done) => done,
            Err(error) if is_error(&error, "NoSuchUnit") => return Ok(Done::Already),
            Err(error) => return Err(error),
        };
        // Otherwise a failed unit would stay in systemd's lists; most have not failed.
        let _ = self.manager.reset_failed_unit(unit).await;
        Ok(done)
    }
}

/// Sends a request and waits for the end of the job that it creates.
///
/// Job results are read from the start: they come over the same connection as the reply, and an
/// unread signal blocks the reply.
async fn job_done(
    mut jobs: JobRemovedStream,
    request: impl Future<Output = zbus::Result<OwnedObjectPath>>,
) -> zbus::Result<Done> {
    let mut ended = Vec::new();
    let mut request = std::pin::pin!(request);
    let job = loop {
        tokio::select! { biased;
            answer = &mut request => break answer?,
            Some(removed) = jobs.next() => ended.extend(result(&removed)),
        }
    };
    if let Some((_, result)) = ended.into_iter().find(|(path, _)| *path == job) {
        return Ok(Done::Job(result));
    }
    while let Some(removed) = jobs.next().await {
        if let Some((_, result)) = result(&removed).filter(|(path, _)| *path == job) {
            return Ok(Done::Job(result));
        }
    }
    Ok(Done::ConnectionLost)
}

/// Which job ended, and its result.
fn result(removed: &JobRemoved) -> Option<(OwnedObjectPath, String)> {
    let args = removed.args().ok()?;
    Some((args.job().clone(), args.result().clone()))
}

fn is_error(error: &zbus::Error, name: &str) -> bool {
    match error {
        zbus::Error::MethodError(full, _, _) => {
            full.as_str().strip_prefix("org.freedesktop.systemd1.") == Some(name)
        }
        _ => false,
    }
}

/// The connection is gone, as opposed to a refusal.
fn is_broken(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::InputOutput(_) => true,
        zbus::Error::FDO(error) => matches!(
            **error,
            zbus::fdo::Error::Disconnected(_)
                | zbus::fdo::Error::NoReply(_)
                | zbus::fdo::Error::ServiceUnknown(_)
                | zbus::fdo::Error::NameHasNoOwner(_)
        ),
        _ => false,
    }
}

fn properties<'a>(
    config: &CgroupConfig,
    cpus: Option<&'a [u8]>,
    cgroup_version: u32,
    systemd_version: u32,
) -> Properties<'a> {
    let mut properties = Properties::new();
    if let Some(bytes) = config.memory_limit {
        let name = if cgroup_version == 1 { "MemoryLimit" } else { "MemoryMax" };
        properties.push((name, Variant::from(bytes)));
    }
    if let Some(shares) = config.cpu_shares {
        properties.push(match cgroup_version {
            1 => ("CPUShares", Variant::from(shares)),
            _ => ("CPUWeight", Variant::from(weight_from_shares(shares))),
        });
    }
    if let Some(quota) = config.cpu_quota {
        if systemd_version >= 242 {
            properties.push(("CPUQuotaPeriodUSec", Variant::from(quota.period_micros)));
        }
        let per_second = quota.micros.map_or(INFINITY, |micros| per_second(micros, quota));
        properties.push(("CPUQuotaPerSecUSec", Variant::from(per_second)));
    }
    if let Some(limit) = config.pids_limit {
        properties.push(("TasksMax", Variant::from(limit.max(1))));
    }
    if let Some(mask) = cpus
        && systemd_version >= 244
    {
        properties.push(("AllowedCPUs", Variant::from(mask)));
    }
    properties
}

fn per_second(micros: u64, quota: CpuQuota) -> u64 {
    let per_second =
        (u128::from(micros) * 1_000_000).checked_div(u128::from(quota.period_micros)).unwrap_or(0);
    u64::try_from(per_second).unwrap_or(INFINITY)
}

/// systemd keeps a quota as whole per cent of a CPU. Rounded up, because a container's quota must
/// not exceed its pod's.
fn in_whole_percent(quota: CpuQuota) -> CpuQuota {
    const PERCENT: u64 = 10_000;
    let round = |micros: u64| {
        let per_second = per_second(micros, quota);
        if per_second.is_multiple_of(PERCENT) {
            return micros;
        }
        let rounded = u128::from(per_second.div_ceil(PERCENT)) * u128::from(PERCENT);
        u64::try_from(rounded * u128::from(quota.period_micros) / 1_000_000).unwrap_or(micros)
    };
    CpuQuota { micros: quota.micros.map(round), ..quota }
}

/// `0-3,8` as a bit mask, the lowest CPU in the lowest bit of the first byte.
fn cpu_mask(list: &str) -> Option<Vec<u8>> {
    const MOST_CPUS: usize = 1 << 16;
    let mut mask = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        for cpu in first..=last {
            if mask.len() <= cpu / 8 {
                mask.resize(cpu / 8 + 1, 0);
            }
            if let Some(byte) = mask.get_mut(cpu / 8) {
                *byte |= 1 << (cpu % 8);
            }
        }
    }
    Some(mask)
}

/// `252.38-1~deb12u1`, `v245.4-1.fc32`
fn parse_version(text: &str) -> u32 {
    let digits = text.trim_start_matches(['"', 'v']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end).and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
