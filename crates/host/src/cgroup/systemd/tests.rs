#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::sync::Arc;

use podwright_core::cgroup::Hugepages;
use tempfile::TempDir;
use tokio::net::UnixListener;
use zbus::object_server::SignalEmitter;
use zbus::{DBusError, Guid, OwnedVariant};

use super::super::tests::{Fixture, V2_FILES, config, name};
use super::super::{CgroupError, Owner};
use super::*;

/// A manager that has units and records its calls, on a socket like systemd's private one.
#[derive(Clone)]
struct FakeSystemd {
    state: Arc<parking_lot::Mutex<State>>,
}

#[derive(Default)]
struct State {
    units: BTreeSet<String>,
    calls: Vec<String>,
    /// How every job ends; `done` if empty.
    job_result: &'static str,
    /// Connections so far; the last one is dropped to break it.
    connections: Vec<Connection>,
}

#[derive(Debug, DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum FakeError {
    #[zbus(error)]
    ZBus(zbus::Error),
    UnitExists(String),
    NoSuchUnit(String),
}

impl FakeSystemd {
    async fn job(
        &self,
        unit: &str,
        emitter: &SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, FakeError> {
        let job = OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/42")?;
        let other = OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/41")?;
        let result = match self.state.lock().job_result {
            "" => "done",
            result => result,
        };
        // A foreign job, then ours; both before the reply to the call.
        Self::job_removed(emitter, 41, other, unit.to_owned(), "failed".to_owned()).await?;
        Self::job_removed(emitter, 42, job.clone(), unit.to_owned(), result.to_owned()).await?;
        Ok(job)
    }
}

fn spell(properties: Vec<(String, OwnedVariant)>) -> String {
    let spelled =
        properties.into_iter().map(|(name, value)| format!("{name}={}", Variant::from(value)));
    spelled.collect::<Vec<_>>().join(" ")
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl FakeSystemd {
    async fn start_transient_unit(
        &self,
        name: String,
        mode: String,
        properties: Vec<(String, OwnedVariant)>,
        _auxiliary: Vec<(String, Vec<(String, OwnedVariant)>)>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, FakeError> {
        {
            let mut state = self.state.lock();
            if !state.units.insert(name.clone()) {
                return Err(FakeError::UnitExists(name));
            }
            state.calls.push(format!("start {name} {mode} {}", spell(properties)));
        }
        self.job(&name, &emitter).await
    }

    async fn stop_unit(
        &self,
        name: String,
        mode: String,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, FakeError> {
        {
            let mut state = self.state.lock();
            if !state.units.remove(&name) {
                return Err(FakeError::NoSuchUnit(name));
            }
            state.calls.push(format!("stop {name} {mode}"));
        }
        self.job(&name, &emitter).await
    }

    async fn set_unit_properties(
        &self,
        name: String,
        runtime: bool,
        properties: Vec<(String, OwnedVariant)>,
    ) -> Result<(), FakeError> {
        let mut state = self.state.lock();
        if !state.units.contains(&name) {
            return Err(FakeError::NoSuchUnit(name));
        }
        state.calls.push(format!("set {name} {runtime} {}", spell(properties)));
        Ok(())
    }

    async fn reset_failed_unit(&self, _name: String) {}

    async fn subscribe(&self) {}

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;

    #[zbus(property)]
    async fn version(&self) -> String {
        "252.38-1~deb12u1".to_owned()
    }
}

/// Serves until the test ends.
fn serve() -> (TempDir, PathBuf, FakeSystemd) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("private");
    let listener = UnixListener::bind(&path).unwrap();
    let fake = FakeSystemd { state: Arc::default() };
    let served = fake.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = Builder::unix_stream(stream.into_std().unwrap())
                .server(Guid::generate())
                .p2p()
                .serve_at("/org/freedesktop/systemd1", served.clone())
                .build()
                .await
                .unwrap();
            served.state.lock().connections.push(connection);
        }
    });
    (dir, path, fake)
}

fn calls(fake: &FakeSystemd) -> Vec<String> {
    std::mem::take(&mut fake.state.lock().calls)
}

const GROUP: &str = "/kubepods/burstable/pod1-2";
const SLICE: &str = "kubepods-burstable-pod1_2.slice";
const DIR: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";

#[tokio::test]
async fn a_group_is_a_transient_slice_with_its_limits_on_unit_and_files() {
    let (_dir, socket, fake) = serve();
    let fixture = Fixture::v2("cpu cpuset memory pids\n");
    fixture.file(&format!("{DIR}/cgroup.controllers"), "cpu cpuset memory pids\n");
    fixture.files(DIR, &V2_FILES);
    let cgroups = fixture.open(Owner::Systemd(Units::at_socket(socket)));
    assert_eq!(cgroups.path(&name(GROUP)), format!("/{DIR}"));

    cgroups.ensure(&name(GROUP), &config()).await.unwrap();

    let start = format!(
        "start {SLICE} replace Description=\"Podwright group {GROUP}\" \
         Wants=[\"kubepods-burstable.slice\"] MemoryAccounting=true CPUAccounting=true \
         IOAccounting=true TasksAccounting=true DefaultDependencies=false"
    );
    let set = format!(
        "set {SLICE} true MemoryMax=67108864 CPUWeight=39 CPUQuotaPeriodUSec=100000 \
         CPUQuotaPerSecUSec=250000 TasksMax=100 AllowedCPUs=[0x03]"
    );
    let made = calls(&fake);
    assert_eq!(made.len(), 2, "{made:?}");
    assert_eq!(plain(&made[0]), plain(&start));
    assert_eq!(plain(&made[1]), plain(&set));
    for (file, want) in [("cpu.weight", "39"), ("memory.max", "67108864"), ("pids.max", "100")] {
        assert_eq!(fixture.read(&format!("{DIR}/{file}")), want, "{file}");
    }

    // again: the unit exists, only the limits are set
    cgroups.ensure(&name(GROUP), &config()).await.unwrap();
    let again = calls(&fake);
    assert_eq!((again.len(), plain(&again[0])), (1, plain(&set)));
}

/// Without type annotations and quotes, which depend on the printer.
fn plain(call: &str) -> String {
    let mut text = call.replace(['"', '\''], "");
    for annotation in ["uint64 ", "byte ", "@as ", "@ay ", "0x0"] {
        text = text.replace(annotation, "");
    }
    text
}

#[tokio::test]
async fn destroying_stops_the_slice_and_removes_its_leftovers() {
    let (_dir, socket, fake) = serve();
    let fixture = Fixture::v2("");
    std::fs::create_dir_all(fixture.path().join(DIR).join("container.scope")).unwrap();
    fake.state.lock().units.insert(SLICE.to_owned());
    let cgroups = fixture.open(Owner::Systemd(Units::at_socket(socket)));
    for _ in 0..2 {
        cgroups.destroy(&name(GROUP)).await.unwrap();
    }
    assert_eq!(calls(&fake), [format!("stop {SLICE} replace")]);
    assert!(!fixture.path().join(DIR).exists());
    assert!(fixture.path().join(DIR).parent().unwrap().exists());
}

#[tokio::test]
async fn pods_are_found_by_the_names_of_their_slices() {
    let fixture = Fixture::v2("");
    for dir in [DIR, "kubepods.slice/kubepods-poda_b.slice", "kubepods.slice/x.scope"] {
        std::fs::create_dir_all(fixture.path().join(dir)).unwrap();
    }
    let cgroups = fixture.open(Owner::Systemd(Units::at_socket("/no/such/socket")));
    let pods = podwright_core::cgroup::PodTree::below(&CgroupName::ROOT);
    let found = cgroups.pods(&pods).await.unwrap();
    let found: Vec<_> = found.iter().map(|(uid, name)| (uid.as_str(), name.to_string())).collect();
    assert_eq!(found, [("1-2", GROUP.to_owned()), ("a-b", "/kubepods/poda-b".to_owned())]);
}

#[tokio::test]
async fn a_job_that_fails_is_named_with_its_result() {
    let (_dir, socket, fake) = serve();
    fake.state.lock().job_result = "failed";
    let units = Units::at_socket(socket);
    let error = units.start(&name(GROUP), 2).await.unwrap_err();
    let want =
        format!("systemd tried to start unit {SLICE}, with the result \"failed\"; see its log");
    assert_eq!(error.to_string(), want);
}

#[tokio::test]
async fn refusal_is_returned_and_not_retried() {
    let (_dir, socket, fake) = serve();
    let units = Units::at_socket(socket);
    let error = units.set(&name("/none"), config(), 2).await.unwrap_err();
    assert_eq!(error.to_string(), "systemd did not set the limits of unit none.slice");
    assert_eq!(fake.state.lock().connections.len(), 1);
}

#[tokio::test]
async fn broken_connection_is_reestablished() {
    let (_dir, socket, fake) = serve();
    let units = Units::at_socket(socket);
    units.start(&name("/a"), 2).await.unwrap();
    // when systemd is restarted: it keeps its units, but every connection ends
    let connections = std::mem::take(&mut fake.state.lock().connections);
    for connection in connections {
        connection.close().await.unwrap();
    }
    units.start(&name("/b"), 2).await.unwrap();
    assert_eq!(calls(&fake).len(), 2);
}

#[tokio::test]
async fn error_without_systemd_says_what_to_check() {
    let fixture = Fixture::v2("");
    let cgroups = fixture.open(Owner::Systemd(Units::at_socket("/no/such/socket")));
    let error = cgroups.ensure(&name("/a"), &config()).await.unwrap_err();
    assert!(matches!(&error, CgroupError::Unit { name, .. } if name == "/a"));
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.starts_with("cannot reach systemd over D-Bus"), "{source}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_systemd_has_a_time_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("private");
    let _never_accepts = UnixListener::bind(&path).unwrap();
    let started = tokio::time::Instant::now();
    let error = Units::at_socket(path).start(&name("/a"), 2).await.unwrap_err();
    assert!(matches!(error, UnitError::Timeout { .. }), "{error}");
    assert!(started.elapsed() >= CALL_TIMEOUT);
}

#[test]
fn limits_use_the_properties_of_each_cgroup_version() {
    let names = |version, systemd| {
        let properties = properties(&config(), Some(&[3]), version, systemd);
        properties.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(1, 252),
        [
            "MemoryLimit",
            "CPUShares",
            "CPUQuotaPeriodUSec",
            "CPUQuotaPerSecUSec",
            "TasksMax",
            "AllowedCPUs"
        ]
    );
    assert_eq!(names(2, 240), ["MemoryMax", "CPUWeight", "CPUQuotaPerSecUSec", "TasksMax"]);
    let leave = CgroupConfig { hugepages: Hugepages::Unlimited, ..CgroupConfig::default() };
    assert!(properties(&leave, None, 2, 252).is_empty());
}

#[test]
fn quotas_are_rounded_up_to_whole_per_cent() {
    for (micros, period, want, per_sec) in [
        (25_000, 100_000, 25_000, 250_000),
        (25_100, 100_000, 26_000, 260_000),
        (1_000, 100_000, 1_000, 10_000),
        (1, 100_000, 1_000, 10_000),
        (33, 1_000, 40, 40_000),
    ] {
        let quota = CpuQuota { micros: Some(micros), period_micros: period };
        let rounded = in_whole_percent(quota);
        assert_eq!(rounded.micros, Some(want), "{micros} per {period}");
        assert_eq!(per_second(want, quota), per_sec, "{micros} per {period}");
    }
    let unlimited = CpuQuota { micros: None, period_micros: 100_000 };
    assert_eq!(in_whole_percent(unlimited), unlimited);
    let absurd = CpuQuota { micros: Some(u64::MAX), period_micros: 0 };
    assert_eq!(in_whole_percent(absurd), absurd);
}

#[test]
fn cpu_lists_become_masks() {
    for (list, mask) in [
        ("0", Some(vec![1])),
        ("0-3,8", Some(vec![0x0f, 0x01])),
        ("7", Some(vec![0x80])),
        ("16", Some(vec![0, 0, 1])),
        ("3-1", None),
        ("", None),
        ("a", None),
        ("99999999", None),
    ] {
        assert_eq!(cpu_mask(list), mask, "{list}");
    }
    for (text, version) in
        [("252.38-1~deb12u1", 252), ("v245.4-1.fc32", 245), ("\"257\"", 257), ("", 0)]
    {
        assert_eq!(parse_version(text), version, "{text}");
    }
}
