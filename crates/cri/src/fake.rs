//! A container runtime in memory that behaves like containerd.
//!
//! It is no mock: it expects nothing. It keeps sandboxes, containers and images, reserves names,
//! hands out addresses, plays each container's [`Script`], sends events, and answers over the real
//! protocol, on connections that exist only in memory. So the client, the node and everything
//! between are the ones that ship, and all of it runs under tokio's paused time.
//!
//! What goes wrong is said by [`Rule`]s and drawn from one seed. What a node agent must never do
//! is checked at every call; see [`Fake::violations`].
//!
//! The model is containerd 1.6 in what it refuses and in which words; [`Features`] adds what newer
//! ones can.

mod containers;
mod event_service;
mod events;
mod exec;
mod faults;
mod image_service;
mod images;
mod inspect;
mod journal;
mod names;
mod observer;
mod options;
mod output;
mod random;
mod reports;
mod rpc;
mod runtime_service;
mod sandboxes;
mod script;
mod serve;
mod stats;
#[cfg(test)]
mod tests;
mod wire;
mod world;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use podwright_core::image::BadImageName;
use podwright_proto::containerd_events::events_server::EventsServer;
use podwright_proto::cri;
use podwright_proto::cri::image_service_server::ImageServiceServer;
use podwright_proto::cri::runtime_service_server::RuntimeServiceServer;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Server, Uri};

pub use faults::{EventFault, Fault, Rule};
pub use images::{FakeImage, Pull, Pulling};
pub use inspect::{ContainerState, ContainerView, SandboxView, Snapshot};
pub use journal::{Call, Outcome, Violation};
pub use observer::{CallObserver, CallProgress, ObservedCall};
pub use tonic::Code;

pub use options::{Condition, ExecCall, FakeOptions, Features, Wall, wall_from};
pub use rpc::{About, PodRef, Rpc};
pub use script::{ExecReply, OnTerm, Script, Usage};

use crate::client::{Client, Timeouts};
use containers::State;
use runtime_service::Served;
use script::End;
use serve::Shared;
use wire::Wire;

/// What a real runtime takes in one message, too.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// A runtime. Clones are the same one; it ends with the last of them.
///
/// Wherever a pod is named, its name, `namespace/name` or its UID will do.
#[derive(Clone)]
pub struct Fake {
    shared: Arc<Shared>,
    connections: mpsc::UnboundedSender<Wire>,
    _life: Arc<DropGuard>,
}

impl Fake {
    /// Starts a runtime. Call it within a tokio runtime, whose time it follows.
    pub fn start(options: FakeOptions) -> Self {
        let shared = Shared::new(options);
        let (connections, incoming) = mpsc::unbounded_channel();
        let served = Served(shared.clone());
        let runtime =
            RuntimeServiceServer::new(served.clone()).max_decoding_message_size(MAX_REQUEST);
        let images = ImageServiceServer::new(served.clone()).max_decoding_message_size(MAX_REQUEST);
        let server = Server::builder()
            .add_service(runtime)
            .add_service(images)
            .add_service(EventsServer::new(served));
        let incoming = UnboundedReceiverStream::new(incoming).map(Ok::<_, Infallible>);
        let life = shared.life.clone();
        tokio::spawn(async move {
            let served = life.run_until_cancelled(server.serve_with_incoming(incoming)).await;
            if let Some(Err(error)) = served {
                tracing::error!(%error, "the fake runtime cannot serve");
            }
        });
        let life = Arc::new(shared.life.clone().drop_guard());
        Self { shared, connections, _life: life }
    }

    // === Talking to it ===

    pub fn client(&self) -> Client {
        self.client_with(Timeouts::default())
    }

    pub fn client_with(&self, timeouts: Timeouts) -> Client {
        Client::over(self.channel(), timeouts)
    }

    /// The client of an agent that will be killed: once `end` is cancelled it does not connect
    /// again, so that nothing which outlives the agent can act for it.
    pub fn client_until(&self, timeouts: Timeouts, end: CancellationToken) -> Client {
        Client::over(self.channel_until(end), timeouts)
    }

    /// A channel that connects with its first call, and again whenever the connection broke.
    pub fn channel(&self) -> Channel {
        self.channel_until(CancellationToken::new())
    }

    fn channel_until(&self, end: CancellationToken) -> Channel {
        let (shared, connections) = (Arc::downgrade(&self.shared), self.connections.clone());
        let connector = tower::service_fn(move |_: Uri| {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let shared = shared.upgrade().filter(|_| !end.is_cancelled());
            let line = shared.and_then(|shared| shared.accept());
            let near = line.ok_or_else(refused).and_then(|line| {
                let (near, far) = Wire::pair(line);
                connections.send(far).map_err(|_| refused())?;
                Ok(hyper_util::rt::TokioIo::new(near))
            });
            std::future::ready(near)
        });
        Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
    }

    /// Answers at a socket as well, for an agent that is another process. Never ends by itself.
    pub async fn listen(&self, listener: UnixListener) {
        loop {
            // Nobody is lost who is still there for the next try.
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            let Some(line) = self.shared.accept() else { continue };
            let (mut near, far) = Wire::pair(line);
            if self.connections.send(far).is_err() {
                return;
            }
            tokio::spawn(async move {
                // How it ended is for both ends to notice.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut near).await;
            });
        }
    }

    // === What it has and what its containers do ===

    pub fn images(&self) -> Images<'_> {
        Images(self)
    }

    /// The next sandboxes and containers get these ids, in this order.
    pub fn name_next(&self, ids: impl IntoIterator<Item = String>) {
        self.shared.world.lock().given_ids.extend(ids);
    }

    /// What containers of this image do. Those without a script run forever.
    pub fn script(&self, image: &str, script: Script) {
        let name = podwright_core::image::full_name(image).unwrap_or_else(|_| image.to_owned());
        self.shared.world.lock().scripts.insert(name, script);
    }

    /// Chooses scripts by the container's whole configuration; `None` leaves it to the image's.
    pub fn choose_scripts(
        &self,
        choose: impl Fn(&cri::ContainerConfig) -> Option<Script> + Send + Sync + 'static,
    ) {
        self.shared.world.lock().chooser = Some(Arc::new(choose));
    }

    /// Answers commands as the test goes; `None` leaves it to the script.
    pub fn answer_exec(
        &self,
        answer: impl Fn(&ExecCall) -> Option<ExecReply> + Send + Sync + 'static,
    ) {
        self.shared.world.lock().answerer = Some(Arc::new(answer));
    }

    pub fn set_runtime(&self, condition: Condition) {
        self.shared.world.lock().runtime = condition;
    }

    /// While the network is not ready, only sandboxes in the host's network can be made.
    pub fn set_network(&self, condition: Condition) {
        self.shared.world.lock().network = condition;
    }

    // === What goes wrong ===

    pub fn fail(&self, rule: Rule<Fault>) {
        self.shared.world.lock().rules.add(rule);
    }

    pub fn disturb_events(&self, rule: Rule<EventFault>) {
        self.shared.world.lock().rules.add_for_events(rule);
    }

    /// From now on stops of containers and sandboxes are answered as done, and nothing happens.
    pub fn stop_in_vain(&self) {
        self.shared.world.lock().stops_in_vain = true;
    }

    /// No rule holds any more, and what is stopped stops.
    pub fn heal(&self) {
        let mut world = self.shared.world.lock();
        world.rules.clear();
        world.stops_in_vain = false;
    }

    /// The container's process ends. False: none was running.
    pub fn kill_container(&self, pod: &str, container: &str, code: i32) -> bool {
        self.end(pod, container, &End::code(code))
    }

    /// The kernel takes the container's process for its memory. False: none was running.
    pub fn oom_kill(&self, pod: &str, container: &str) -> bool {
        self.end(pod, container, &End::out_of_memory())
    }

    fn end(&self, pod: &str, container: &str, end: &End) -> bool {
        let mut world = self.shared.world.lock();
        let living = world.living(pod, container);
        living.inspect(|id| world.end_container(id, end)).is_some()
    }

    /// The runtime no longer knows what became of a container. False: none was running.
    pub fn lose_track_of(&self, pod: &str, container: &str) -> bool {
        let mut world = self.shared.world.lock();
        let living = world.living(pod, container);
        let lost = living.and_then(|id| world.containers.get_mut(&id));
        let lost = lost.map(|container| container.state = State::Unknown).is_some();
        world.touch();
        lost
    }

    /// Somebody removes a running container behind the agent's back. False: there was none.
    pub fn forget_container(&self, pod: &str, container: &str) -> bool {
        let mut world = self.shared.world.lock();
        let living = world.living(pod, container);
        living.inspect(|id| world.delete_container(id)).is_some()
    }

    /// The sandbox's own process ends; its containers run on. False: none was ready.
    pub fn kill_sandbox(&self, pod: &str) -> bool {
        let mut world = self.shared.world.lock();
        let ready = world.ready_sandbox(pod);
        ready.inspect(|id| world.end_sandbox(id)).is_some()
    }

    /// The sandbox stays ready but has no address any more. False: none was ready.
    pub fn lose_addresses(&self, pod: &str) -> bool {
        let mut world = self.shared.world.lock();
        let ready = world.ready_sandbox(pod);
        let lost = ready.and_then(|id| world.sandboxes.get_mut(&id));
        let lost = lost.map(|sandbox| sandbox.ips.clear()).is_some();
        world.touch();
        lost
    }

    /// Every connection breaks, as when the agent dies: calls under way are abandoned, and the
    /// runtime undoes what they had begun.
    pub fn hang_up(&self) {
        self.shared.hang_up();
    }

    /// The runtime's process ends. Containers run on; nobody can be reached.
    pub fn go_down(&self) {
        self.shared.go_down();
    }

    pub fn come_up(&self) {
        self.shared.come_up();
    }

    /// The runtime's process is replaced. What it holds survives, and containers run on; calls
    /// under way are lost half done.
    pub fn restart(&self) {
        self.go_down();
        self.come_up();
    }

    /// The machine is started again: what ran has ended, unseen, and no sandbox is ready.
    pub fn reboot(&self) {
        self.go_down();
        {
            let mut world = self.shared.world.lock();
            let containers: Vec<String> = world.containers.keys().cloned().collect();
            for id in containers {
                world.lose_container(&id);
            }
            let sandboxes: Vec<String> = world.sandboxes.keys().cloned().collect();
            for id in sandboxes {
                world.lose_sandbox(&id);
            }
            world.touch();
        }
        self.come_up();
    }

    // === What happened ===

    /// Every call so far, oldest first, as many as are remembered.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.world.lock().journal.calls()
    }

    /// How often a call was made, remembered or not.
    pub fn count(&self, rpc: Rpc) -> u64 {
        self.shared.world.lock().journal.count(rpc)
    }

    /// Forgets all calls that ended, so that a test sees only what comes next.
    pub fn forget_calls(&self) {
        self.shared.world.lock().journal.forget_calls();
    }

    /// What a node agent must never do, and this one did.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.world.lock().journal.violations().to_vec()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.shared.world.lock().snapshot()
    }

    /// Waits until the runtime is in a state that pleases, and shows it.
    pub async fn wait_for(&self, mut pleases: impl FnMut(&Snapshot) -> bool) -> Snapshot {
        let mut changes = self.shared.world.lock().changes.subscribe();
        loop {
            changes.mark_unchanged();
            let snapshot = self.snapshot();
            if pleases(&snapshot) {
                return snapshot;
            }
            if changes.changed().await.is_err() {
                // The sender lives as long as `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The pod CIDR that the agent told the runtime.
    pub fn pod_cidr(&self) -> Option<String> {
        self.shared.world.lock().pod_cidr.clone()
    }
}

/// The fake's images.
pub struct Images<'a>(&'a Fake);

impl Images<'_> {
    /// Puts an image on the machine, as if it had been pulled before. Returns its id.
    pub fn add(&self, image: impl Into<FakeImage>) -> Result<String, BadImageName> {
        let mut world = self.0.shared.world.lock();
        world.images.add(&image.into()).map(|image| image.id)
    }

    /// Takes an image off the machine.
    pub fn remove(&self, image: &str) {
        self.0.shared.world.lock().images.remove(image);
    }

    /// Lets a registry offer an image. What nobody offers cannot be pulled.
    pub fn offer(&self, image: impl Into<FakeImage>, pull: Pull) {
        self.0.shared.world.lock().images.offer(image.into(), pull);
    }

    /// The pulls under way.
    pub fn pulls(&self) -> Vec<Pulling> {
        self.0.shared.world.lock().images.pulls()
    }
}
