#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncBufReadExt as _;
use zbus::object_server::SignalEmitter;

use super::*;

/// A login manager that hands out locks, and a systemd that takes signals for it.
#[derive(Clone, Default)]
struct FakeLogin(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    delay_micros: u64,
    preparing: bool,
    calls: Vec<String>,
    /// Our end of each lock.
    locks: Vec<std::io::PipeReader>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl FakeLogin {
    async fn inhibit(&self, what: String, who: String, why: String, mode: String) -> zbus::OwnedFd {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut state = self.0.lock();
        state.calls.push(format!("inhibit {what} {who} {mode}: {why}"));
        state.locks.push(reader);
        OwnedFd::from(writer).into()
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    async fn inhibit_delay_max_usec(&self) -> u64 {
        self.0.lock().delay_micros
    }

    #[zbus(property)]
    async fn preparing_for_shutdown(&self) -> bool {
        self.0.lock().preparing
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

struct FakeUnits(FakeLogin);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl FakeUnits {
    async fn kill_unit(&self, name: String, whom: String, signal: i32) {
        self.0.0.lock().calls.push(format!("kill {name} {whom} {signal}"));
    }
}

const PATH: &str = "/org/freedesktop/login1";
const SYSTEMD: &str = "/org/freedesktop/systemd1";

/// A bus of the test's own.
struct Bus {
    address: String,
    daemon: tokio::process::Child,
    _dir: tempfile::TempDir,
}

impl Bus {
    /// `None` on a machine without dbus-daemon.
    async fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("bus.conf");
        let socket = dir.path().join("bus");
        let text = format!(
            "<busconfig><type>system</type><listen>unix:path={}</listen>\
             <policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>\
             <allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        for path in [dir.path(), &config] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let started = tokio::process::Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let Ok(mut daemon) = started else {
            eprintln!("skipped: there is no dbus-daemon on this machine");
            return None;
        };
        let mut lines = tokio::io::BufReader::new(daemon.stdout.take().unwrap()).lines();
        let address = lines.next_line().await.unwrap().expect("the bus started");
        Some(Self { address, daemon, _dir: dir })
    }

    async fn serve(&self, fake: &FakeLogin) -> Connection {
        Builder::address(self.address.as_str())
            .serve_at(PATH, fake.clone())
            .serve_at(SYSTEMD, FakeUnits(fake.clone()))
            .name(NAME)
            .name("org.freedesktop.systemd1")
            .build()
            .await
            .unwrap()
    }

    fn at(&self) -> LoginBus {
        LoginBus::Address(self.address.clone())
    }
}

async fn announce(connection: &Connection, start: bool) {
    let emitter = SignalEmitter::new(connection, PATH).unwrap();
    FakeLogin::prepare_for_shutdown(&emitter, start).await.unwrap();
}

async fn next(session: &mut LoginSession) -> Option<bool> {
    tokio::time::timeout(Duration::from_secs(20), session.next()).await.expect("something came")
}

#[tokio::test]
async fn login_manager_on_a_bus_delays_shutdowns_and_announces_them() {
    let Some(bus) = Bus::start().await else { return };
    let fake = FakeLogin::default();
    fake.0.lock().delay_micros = 5_000_000;
    let login = bus.serve(&fake).await;
    let mut session = LoginSession::open(&bus.at()).await.unwrap();

    assert_eq!(session.delay().await.unwrap(), Duration::from_secs(5));
    assert!(!session.is_shutting_down().await.unwrap());
    fake.0.lock().preparing = true;
    assert!(session.is_shutting_down().await.unwrap());
    session.reload().await.unwrap();
    let lock = session.lock().await.unwrap();
    let calls = fake.0.lock().calls.clone();
    assert_eq!(
        calls,
        [
            "kill systemd-logind.service all 1",
            "inhibit shutdown kubelet delay: Kubelet needs time to handle node shutdown"
        ]
    );
    announce(&login, true).await;
    announce(&login, false).await;
    assert_eq!(next(&mut session).await, Some(true));
    assert_eq!(next(&mut session).await, Some(false));

    // The lock is released by closing the descriptor.
    let reader = fake.0.lock().locks.remove(0);
    let released =
        tokio::task::spawn_blocking(move || std::io::Read::read(&mut &reader, &mut [0]).unwrap());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!released.is_finished());
    drop(lock);
    assert_eq!(released.await.unwrap(), 0, "end of the pipe");
}

#[tokio::test]
async fn session_ends_when_the_login_manager_or_the_bus_is_restarted() {
    let Some(mut bus) = Bus::start().await else { return };
    let login = bus.serve(&FakeLogin::default()).await;
    let mut session = LoginSession::open(&bus.at()).await.unwrap();
    login.close().await.unwrap();
    assert_eq!(next(&mut session).await, None, "the name has no owner");

    let _login = bus.serve(&FakeLogin::default()).await;
    let mut session = LoginSession::open(&bus.at()).await.unwrap();
    bus.daemon.kill().await.unwrap();
    assert_eq!(next(&mut session).await, None, "there is no connection");
    assert!(matches!(session.delay().await, Err(LoginError::Call { .. })));
}

#[tokio::test]
async fn announcements_of_others_on_the_bus_are_not_received() {
    let Some(bus) = Bus::start().await else { return };
    let login = bus.serve(&FakeLogin::default()).await;
    let mut session = LoginSession::open(&bus.at()).await.unwrap();
    let other = Builder::address(bus.address.as_str()).build().await.unwrap();
    for _ in 0..1000 {
        announce(&other, true).await;
    }
    // The bus has passed on or dropped what came before the answer to this.
    DBusProxy::new(&other).await.unwrap().get_id().await.unwrap();
    announce(&login, false).await;
    assert_eq!(next(&mut session).await, Some(false));
    assert_eq!(session.delay().await.unwrap(), Duration::ZERO, "the connection works");
}

#[tokio::test]
async fn machine_without_a_bus_is_named_with_the_fix() {
    let error = LoginSession::open(&LoginBus::Peer("/no/such/socket".into())).await.err().unwrap();
    assert!(matches!(error, LoginError::Connect { .. }));
    assert!(error.to_string().contains("Fix: start dbus and systemd-logind"), "{error}");
}

#[test]
fn override_replaces_only_what_a_node_agent_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("logind.conf.d");
    let file = directory.join(OVERRIDE_FILE);
    let thirty = Duration::from_secs(30);
    let write = |text: &str| write_override(&directory, "# ours", text, thirty);
    write("# ours\n1\n").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# ours\n1\n");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    write("# ours\n2\n").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# ours\n2\n");
    let foreign = "[Login]\nInhibitDelayMaxSec=7\n";
    for foreign in [foreign.to_owned(), "x".repeat(5000)] {
        std::fs::write(&file, &foreign).unwrap();
        let error = write("# ours\n3\n").unwrap_err();
        assert!(error.to_string().contains("set InhibitDelayMaxSec there to 30"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), foreign);
    }
}
