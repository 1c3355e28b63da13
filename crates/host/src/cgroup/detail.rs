//! Detailed cgroup counters, for dashboards.

use std::path::Path;

use podwright_core::cgroup::CgroupConfig;

use super::access::{self, Io};
use super::directory::{keyed, read, read_number};
use super::processes::{self, Processes};
use super::{Result, v1, v2};

/// Totals since the group was created, or current values; absent where the kernel has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    pub user_nanos: Option<u64>,
    pub system_nanos: Option<u64>,
    /// Only with a quota.
    pub throttling: Option<Throttling>,
    pub cache: Option<u64>,
    pub mapped_file: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    pub kernel: Option<u64>,
    /// Peak usage.
    pub peak: Option<u64>,
    /// How often the limit was reached.
    pub limit_hits: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Zero without a limit; the same holds for the following.
    pub most_tasks: Option<u64>,
    /// Usage below this is reclaimed only when other groups have less.
    pub memory_reservation: Option<u64>,
    pub swap_limit: Option<u64>,
    pub cpu_shares: Option<u64>,
    pub cpu_period_micros: Option<u64>,
    /// Only with a quota.
    pub cpu_quota_micros: Option<u64>,
    pub io: Io,
    pub processes: Option<Processes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_nanos: u64,
}

impl v1::Hierarchies {
    pub(super) fn detail(&self, path: &str) -> Result<Detail> {
        /// The unit of `cpuacct.stat`, fixed by the kernel ABI.
        const TICK_NANOS: u64 = 10_000_000;
        let mut detail = Detail::default();
        if let Some(dir) = self.dir("cpuacct", path)
            && let Some(stat) = read(&dir, "cpuacct.stat")?
        {
            detail.user_nanos = Some(keyed(&stat, "user").saturating_mul(TICK_NANOS));
            detail.system_nanos = Some(keyed(&stat, "system").saturating_mul(TICK_NANOS));
        }
        if let Some(dir) = self.dir("cpu", path) {
            let stat = read(&dir, "cpu.stat")?;
            detail.throttling = stat.and_then(|stat| throttling(&stat, "throttled_time", 1));
        }
        if let Some(dir) = self.dir("memory", path) {
            let stat = read(&dir, "memory.stat")?;
            let of = |key| stat.as_ref().map(|stat| keyed(stat, key));
            detail.cache = of("total_cache");
            detail.mapped_file = of("total_mapped_file");
            detail.active_file = of("total_active_file");
            detail.inactive_file = of("total_inactive_file");
            detail.kernel = number(&dir, "memory.kmem.usage_in_bytes")?;
            detail.peak = number(&dir, "memory.max_usage_in_bytes")?;
            detail.limit_hits = number(&dir, "memory.failcnt")?;
            let control = read(&dir, "memory.oom_control")?;
            detail.oom_kills = control.map(|control| keyed(&control, "oom_kill"));
            let limit = |file| v1::memory_limit(&dir, file).map(Option::unwrap_or_default);
            detail.memory_reservation = Some(limit("memory.soft_limit_in_bytes")?);
            detail.swap_limit = Some(limit("memory.memsw.limit_in_bytes")?);
        }
        if let Some(dir) = self.dir("pids", path) {
            detail.most_tasks = number_or_zero(&dir, "pids.max")?;
        }
        if let Some(dir) = self.dir("blkio", path) {
            let of = |file| Ok(read(&dir, file)?.map(|text| access::v1(&text)).unwrap_or_default());
            detail.io = Io {
                bytes: of("blkio.throttle.io_service_bytes_recursive")?,
                operations: of("blkio.throttle.io_serviced_recursive")?,
            };
        }
        detail.settle(&self.settings(path)?);
        if let Some(dir) = self.dir("memory", path).or_else(|| self.dir("cpu", path)) {
            detail.processes = processes_in(&dir)?;
        }
        Ok(detail)
    }
}

impl v2::Unified {
    pub(super) fn detail(&self, path: &str) -> Result<Detail> {
        let dir = self.dir(path);
        let cpu = read(&dir, "cpu.stat")?;
        let time = |key| cpu.as_ref().map(|stat| keyed(stat, key).saturating_mul(1000));
        let stat = read(&dir, "memory.stat")?;
        let memory = |key| stat.as_ref().map(|stat| keyed(stat, key));
        let events = read(&dir, "memory.events")?;
        let event = |key| events.as_ref().map(|events| keyed(events, key));
        let io = read(&dir, "io.stat")?;
        let mut detail = Detail {
            user_nanos: time("user_usec"),
            system_nanos: time("system_usec"),
            throttling: cpu.as_ref().and_then(|stat| throttling(stat, "throttled_usec", 1000)),
            cache: memory("file"),
            mapped_file: memory("file_mapped"),
            active_file: memory("active_file"),
            inactive_file: memory("inactive_file"),
            kernel: memory("kernel"),
            // Kernels before 5.19 have no peak.
            peak: number(&dir, "memory.peak")?.or_else(|| memory("file").map(|_| 0)),
            limit_hits: event("max"),
            oom_kills: event("oom_kill"),
            most_tasks: number_or_zero(&dir, "pids.max")?,
            memory_reservation: number_or_zero(&dir, "memory.high")?,
            swap_limit: number_or_zero(&dir, "memory.swap.max")?,
            io: io.map(|text| access::v2(&text)).unwrap_or_default(),
            processes: processes_in(&dir)?,
            ..Detail::default()
        };
        detail.settle(&self.settings(path)?);
        Ok(detail)
    }
}

impl Detail {
    fn settle(&mut self, settings: &CgroupConfig) {
        let quota = settings.cpu_quota;
        self.cpu_shares = settings.cpu_shares;
        self.cpu_period_micros = quota.map(|quota| quota.period_micros);
        self.cpu_quota_micros = quota.and_then(|quota| quota.micros);
    }
}

fn processes_in(dir: &Path) -> Result<Option<Processes>> {
    let listed = read(dir, "cgroup.procs")?;
    Ok(listed.map(|listed| processes::read(Path::new("/proc"), &listed)))
}

fn number(dir: &Path, file: &str) -> Result<Option<u64>> {
    read_number(dir, file).map(Option::flatten)
}

fn number_or_zero(dir: &Path, file: &str) -> Result<Option<u64>> {
    read_number(dir, file).map(|number| number.map(Option::unwrap_or_default))
}

/// `None` for a group without a quota: it has no periods.
fn throttling(stat: &str, time: &str, nanos: u64) -> Option<Throttling> {
    let periods = keyed(stat, "nr_periods");
    (periods > 0).then(|| Throttling {
        periods,
        throttled_periods: keyed(stat, "nr_throttled"),
        throttled_nanos: keyed(stat, time).saturating_mul(nanos),
    })
}
