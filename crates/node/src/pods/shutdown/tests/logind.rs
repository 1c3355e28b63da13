//! The manager with a login manager of the test's own, on a socket.

use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::path::Path;

use parking_lot::Mutex;
use podwright_host::login::OVERRIDE_FILE;
use tokio::net::UnixListener;
use zbus::connection::Builder;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, Guid};

use super::*;

const PATH: &str = "/org/freedesktop/login1";

#[derive(Clone, Default)]
struct FakeLogin(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    delay: Duration,
    /// What a reload changes the delay to.
    after_reload: Option<Duration>,
    preparing: bool,
    reloads: usize,
    /// Our ends of the locks that were handed out.
    locks: Vec<PipeReader>,
    connections: Vec<Connection>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl FakeLogin {
    async fn inhibit(
        &self,
        what: String,
        who: String,
        _why: String,
        mode: String,
    ) -> zbus::OwnedFd {
        assert_eq!((&*what, &*who, &*mode), ("shutdown", "kubelet", "delay"));
        let (reader, writer) = std::io::pipe().unwrap();
        self.0.lock().locks.push(reader);
        OwnedFd::from(writer).into()
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    async fn inhibit_delay_max_usec(&self) -> u64 {
        u64::try_from(self.0.lock().delay.as_micros()).unwrap()
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
        assert_eq!((&*name, &*whom, signal), ("systemd-logind.service", "all", 1));
        let mut state = self.0.0.lock();
        state.reloads += 1;
        state.delay = state.after_reload.unwrap_or(state.delay);
    }
}

impl FakeLogin {
    fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let served = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = Builder::unix_stream(stream.into_std().unwrap())
                    .server(Guid::generate())
                    .p2p()
                    .serve_at(PATH, served.clone())
                    .serve_at("/org/freedesktop/systemd1", FakeUnits(served.clone()))
                    .build()
                    .await
                    .unwrap();
                served.0.lock().connections.push(connection);
            }
        });
    }

    async fn announce(&self, start: bool) {
        let connection = self.0.lock().connections.last().unwrap().clone();
        let emitter = SignalEmitter::new(&connection, PATH).unwrap();
        Self::prepare_for_shutdown(&emitter, start).await.unwrap();
    }

    fn locks(&self) -> usize {
        self.0.lock().locks.len()
    }

    /// Whether the newest lock is still held.
    fn is_locked(&self) -> bool {
        let state = self.0.lock();
        let Some(reader) = state.locks.last() else { return false };
        let mut fds = [rustix::event::PollFd::new(reader, rustix::event::PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&none)).unwrap() == 0
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 20 s: {what}");
}

/// A node that follows the login manager, with 20 s for normal and 10 s for critical pods.
fn node(login: &FakeLogin) -> Scene {
    let (scene, dependencies) = Scene::new();
    let socket = scene.dir.path().join("login");
    login.serve(&socket);
    let settings = ShutdownSettings {
        groups: ShutdownGroups::with_critical(seconds(30), seconds(10)).unwrap(),
        records: true,
        announcements: Announcements::Login {
            bus: LoginBus::Peer(socket),
            override_dir: scene.dir.path().join("logind.conf.d"),
        },
    };
    tokio::spawn(ShutdownManager::new(settings, dependencies).run(scene.stop.clone()));
    scene
}

fn with_delay(delay: u64, after_reload: Option<u64>) -> FakeLogin {
    let login = FakeLogin::default();
    login.0.lock().delay = seconds(delay);
    login.0.lock().after_reload = after_reload.map(seconds);
    login
}

// The reference, rows 32 and 40.
#[tokio::test]
async fn shutdown_is_delayed_until_the_pods_have_ended_and_again_after_it_was_cancelled() {
    let login = with_delay(5, Some(30));
    let scene = node(&login);
    let pod = scene.pod("normal", 0);
    until("the lock is held", || login.is_locked()).await;
    let written =
        std::fs::read_to_string(scene.dir.path().join("logind.conf.d").join(OVERRIDE_FILE));
    let want = "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n";
    assert_eq!((written.unwrap().as_str(), login.0.lock().reloads), (want, 1));

    login.announce(true).await;
    asked(&pod, Instant::now()).await;
    assert!(*scene.state.borrow());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(login.is_locked(), "the pod still runs");
    pod.advance(|lifecycle| lifecycle.stopped());
    pod.advance(|lifecycle| lifecycle.released());
    until("the lock is released", || !login.is_locked()).await;
    let record = std::fs::read_to_string(scene.dir.path().join(FILE)).unwrap();
    let record: ShutdownRecord = serde_json::from_str(&record).unwrap();
    assert!(record.end.is_some(), "recorded before the machine goes down");

    login.announce(false).await;
    until("a new lock is held", || login.locks() == 2 && login.is_locked()).await;
    assert!(!*scene.state.borrow());
}

// The reference, row 33.
#[tokio::test]
async fn login_manager_that_keeps_its_short_delay_gets_no_lock() {
    let login = with_delay(5, None);
    let scene = node(&login);
    until("it was reloaded", || login.0.lock().reloads > 0).await;
    tokio::time::sleep(seconds(4)).await;
    assert_eq!(login.locks(), 0);
    assert!(!*scene.state.borrow(), "the node is ready");
}

#[tokio::test]
async fn delay_that_is_long_enough_is_left_alone() {
    let login = with_delay(60, None);
    let scene = node(&login);
    until("the lock is held", || login.is_locked()).await;
    assert!(!scene.dir.path().join("logind.conf.d").exists());
    assert_eq!(login.0.lock().reloads, 0);
}

// The reference, row 42.
#[tokio::test]
async fn lost_connection_is_made_again_with_a_new_lock() {
    let login = with_delay(60, None);
    let scene = node(&login);
    let pod = scene.pod("normal", 0);
    until("the lock is held", || login.is_locked()).await;
    let connection = login.0.lock().connections.pop().unwrap();
    connection.close().await.unwrap();
    until("a new lock is held", || login.locks() == 2 && login.is_locked()).await;
    login.announce(true).await;
    asked(&pod, Instant::now()).await;
}

#[tokio::test]
async fn agent_that_starts_during_a_shutdown_ends_the_pods_without_a_lock() {
    let login = with_delay(60, None);
    login.0.lock().preparing = true;
    let scene = node(&login);
    let pod = scene.pod("normal", 0);
    asked(&pod, Instant::now()).await;
    assert_eq!(login.locks(), 0);
    assert!(*scene.state.borrow());
}
