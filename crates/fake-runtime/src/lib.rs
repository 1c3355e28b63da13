//! Fake runtime: a container runtime in memory that behaves like containerd.
//!
//! It is not a mock: it expects nothing. It keeps sandboxes, containers and images, reserves names,
//! hands out addresses, plays each container's [`Script`], sends events, and serves the real
//! protocol, on connections that exist only in memory. So the client, the node and everything
//! between are the ones that ship, and all of it runs under tokio's paused time.
//!
//! Faults are defined by [`Rule`]s and drawn from one seed. What a node agent must never do is
//! checked at every call; see [`Fake::violations`].
//!
//! The model is containerd 1.6 in what it refuses and in its error messages; [`Features`] adds what
//! newer versions can do.

mod containers;
mod event_service;
mod events;
mod exec;
mod faults;
mod image_service;
mod images;
mod inspect;
mod instances;
mod journal;
mod names;
mod observer;
mod options;
mod output;
mod random;
mod reports;
mod rpc;
mod runtime_service;
mod runtime_state;
mod sandboxes;
mod script;
mod serve;
mod stats;
#[cfg(test)]
mod tests;
mod wire;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use podwright_api::image_name::ImageNameError;
use podwright_cri::{Client, Timeouts};
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
pub use instances::{InstanceChange, InstanceEvent};
pub use journal::{Call, Outcome, Violation};
pub use observer::{CallObserver, CallProgress, ObservedCall};
pub use tonic::Code;

pub use options::{Condition, ExecCall, FakeOptions, Features, Wall, wall_from};
pub use rpc::{About, PodRef, Rpc};
pub use script::{ExecReply, OnTerm, Script, Usage};

use containers::State;
use runtime_service::Served;
use script::End;
use serve::Shared;
use wire::Wire;

/// The same limit as in a real runtime.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// A runtime. Clones share it; it ends with the last of them.
///
/// A pod can be given by its name, `namespace/name` or its UID.
#[derive(Clone)]
pub struct Fake {
    shared: Arc<Shared>,
    connections: mpsc::UnboundedSender<Wire>,
    _shutdown_guard: Arc<DropGuard>,
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
        let shutdown = shared.shutdown.clone();
        tokio::spawn(async move {
            let served = shutdown.run_until_cancelled(server.serve_with_incoming(incoming)).await;
            if let Some(Err(error)) = served {
                tracing::error!(%error, "serve fake runtime failed");
            }
        });
        let shutdown = Arc::new(shared.shutdown.clone().drop_guard());
        Self { shared, connections, _shutdown_guard: shutdown }
    }

    // === Clients ===

    pub fn client(&self) -> Client {
        self.client_with(Timeouts::default())
    }

    pub fn client_with(&self, timeouts: Timeouts) -> Client {
        Client::over(self.channel(), timeouts)
    }

    /// The client of an agent that will be killed: once `end` is cancelled it does not reconnect,
    /// so that tasks which outlive the agent cannot act for it.
    pub fn client_until(&self, timeouts: Timeouts, end: CancellationToken) -> Client {
        Client::over(self.channel_until(end), timeouts)
    }

    /// A channel that connects with its first call, and reconnects when the connection breaks.
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

    /// Also serves on a socket, for an agent in another process. Never returns.
    pub async fn listen(&self, listener: UnixListener) {
        loop {
            // An accept error affects no existing connection; continue.
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            let Some(line) = self.shared.accept() else { continue };
            let (mut near, far) = Wire::pair(line);
            if self.connections.send(far).is_err() {
                return;
            }
            tokio::spawn(async move {
                // Both ends notice how the connection ended.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut near).await;
            });
        }
    }

    // === Content and scripts ===

    pub fn images(&self) -> Images<'_> {
        Images(self)
    }

    /// The next sandboxes and containers get these ids, in this order.
    pub fn name_next(&self, ids: impl IntoIterator<Item = String>) {
        self.shared.runtime_state.lock().given_ids.extend(ids);
    }

    /// Behaviour of containers of this image. Those without a script run forever.
    pub fn script(&self, image: &str, script: Script) {
        let name = podwright_api::image_name::full_name(image).unwrap_or_else(|_| image.to_owned());
        self.shared.runtime_state.lock().scripts.insert(name, script);
    }

    /// Chooses scripts by the container's whole configuration; `None` falls back to the image's.
    pub fn choose_scripts(
        &self,
        choose: impl Fn(&cri::ContainerConfig) -> Option<Script> + Send + Sync + 'static,
    ) {
        self.shared.runtime_state.lock().chooser = Some(Arc::new(choose));
    }

    /// Handles exec commands in the test; `None` falls back to the script.
    pub fn handle_exec(
        &self,
        answer: impl Fn(&ExecCall) -> Option<ExecReply> + Send + Sync + 'static,
    ) {
        self.shared.runtime_state.lock().exec_handler = Some(Arc::new(answer));
    }

    pub fn set_runtime(&self, condition: Condition) {
        self.shared.runtime_state.lock().runtime = condition;
    }

    /// While the network is not ready, only host-network sandboxes can be created.
    pub fn set_network(&self, condition: Condition) {
        self.shared.runtime_state.lock().network = condition;
    }

    // === Faults ===

    pub fn fail(&self, rule: Rule<Fault>) {
        self.shared.runtime_state.lock().rules.add(rule);
    }

    pub fn disturb_events(&self, rule: Rule<EventFault>) {
        self.shared.runtime_state.lock().rules.add_for_events(rule);
    }

    /// From now on stops of containers and sandboxes succeed without effect.
    pub fn ignore_stops(&self) {
        self.shared.runtime_state.lock().ignores_stops = true;
    }

    /// Removes all rules, and lets stops take effect again.
    pub fn heal(&self) {
        let mut runtime_state = self.shared.runtime_state.lock();
        runtime_state.rules.clear();
        runtime_state.ignores_stops = false;
    }

    /// The container's process ends. False: none was running.
    pub fn kill_container(&self, pod: &str, container: &str, code: i32) -> bool {
        self.end(pod, container, &End::code(code))
    }

    /// The OOM killer kills the container's process. False: none was running.
    pub fn oom_kill(&self, pod: &str, container: &str) -> bool {
        self.end(pod, container, &End::out_of_memory())
    }

    fn end(&self, pod: &str, container: &str, end: &End) -> bool {
        let mut runtime_state = self.shared.runtime_state.lock();
        let living = runtime_state.living(pod, container);
        living.inspect(|id| runtime_state.end_container(id, end)).is_some()
    }

    /// The runtime loses the state of a container. False: none was running.
    pub fn lose_state_of(&self, pod: &str, container: &str) -> bool {
        let mut runtime_state = self.shared.runtime_state.lock();
        let living = runtime_state.living(pod, container);
        let lost = living.as_ref().and_then(|id| runtime_state.containers.get_mut(id));
        let lost = lost.map(|container| container.state = State::Unknown).is_some();
        if let Some(id) = &living {
            runtime_state.note_instance(id, InstanceEvent::StateLost);
        }
        runtime_state.touch();
        lost
    }

    /// Removes a running container without the agent's knowledge. False: there was none.
    pub fn remove_container_externally(&self, pod: &str, container: &str) -> bool {
        let mut runtime_state = self.shared.runtime_state.lock();
        let living = runtime_state.living(pod, container);
        let Some(id) = living else { return false };
        runtime_state.note_instance(&id, InstanceEvent::RemovedExternally);
        runtime_state.delete_container(&id);
        true
    }

    /// The sandbox's own process ends; its containers keep running. False: none was ready.
    pub fn kill_sandbox(&self, pod: &str) -> bool {
        let mut runtime_state = self.shared.runtime_state.lock();
        let ready = runtime_state.ready_sandbox(pod);
        ready.inspect(|id| runtime_state.end_sandbox(id)).is_some()
    }

    /// The sandbox stays ready but has no address any more. False: none was ready.
    pub fn lose_addresses(&self, pod: &str) -> bool {
        let mut runtime_state = self.shared.runtime_state.lock();
        let ready = runtime_state.ready_sandbox(pod);
        let lost = ready.and_then(|id| runtime_state.sandboxes.get_mut(&id));
        let lost = lost.map(|sandbox| sandbox.ips.clear()).is_some();
        runtime_state.touch();
        lost
    }

    /// Breaks every connection, as when the agent is killed: calls under way are abandoned, and the
    /// runtime rolls them back.
    pub fn hang_up(&self) {
        self.shared.hang_up();
    }

    /// The runtime's process ends. Containers keep running; connections are refused.
    pub fn go_down(&self) {
        self.shared.go_down();
    }

    pub fn come_up(&self) {
        self.shared.come_up();
    }

    /// Restarts the runtime's process. Its state survives, and containers keep running; calls under
    /// way are lost half done.
    pub fn restart(&self) {
        self.go_down();
        self.come_up();
    }

    /// Reboots the machine: all containers have ended without a record, and no sandbox is ready.
    pub fn reboot(&self) {
        self.go_down();
        {
            let mut runtime_state = self.shared.runtime_state.lock();
            let containers: Vec<String> = runtime_state.containers.keys().cloned().collect();
            for id in containers {
                runtime_state.lose_container(&id);
            }
            let sandboxes: Vec<String> = runtime_state.sandboxes.keys().cloned().collect();
            for id in sandboxes {
                runtime_state.lose_sandbox(&id);
            }
            runtime_state.touch();
        }
        self.come_up();
    }

    // === Inspection by tests ===

    /// Every call so far, oldest first, as many as are kept.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.runtime_state.lock().journal.calls()
    }

    /// How often a call was made, kept or not.
    pub fn count(&self, rpc: Rpc) -> u64 {
        self.shared.runtime_state.lock().journal.count(rpc)
    }

    /// Clears all finished calls, so that a test sees only later ones.
    pub fn clear_calls(&self) {
        let mut runtime_state = self.shared.runtime_state.lock();
        runtime_state.journal.clear_calls();
        runtime_state.drop_old_instance_changes();
    }

    /// Everything that happened to container instances, oldest first. [`Self::clear_calls`] drops
    /// what is about pods of which the runtime has nothing left.
    pub fn instance_changes(&self) -> Vec<InstanceChange> {
        self.shared.runtime_state.lock().journal.instance_changes.clone()
    }

    /// The containers that exist now were made before the simulated agent: the journal does not
    /// know how many instances came before them.
    pub fn mark_adopted(&self) {
        let mut runtime_state = self.shared.runtime_state.lock();
        let ids: Vec<String> = runtime_state.containers.keys().cloned().collect();
        for id in ids {
            runtime_state.note_instance(&id, InstanceEvent::Adopted);
        }
    }

    /// Violations of the rules for node agents so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.runtime_state.lock().journal.violations().to_vec()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.shared.runtime_state.lock().snapshot()
    }

    /// Waits until the runtime's state matches the condition, and returns it.
    pub async fn wait_for(&self, mut pleases: impl FnMut(&Snapshot) -> bool) -> Snapshot {
        let mut changes = self.shared.runtime_state.lock().changes.subscribe();
        loop {
            changes.mark_unchanged();
            let snapshot = self.snapshot();
            if pleases(&snapshot) {
                return snapshot;
            }
            if changes.changed().await.is_err() {
                // The sender exists as long as `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The pod CIDR that the agent set.
    pub fn pod_cidr(&self) -> Option<String> {
        self.shared.runtime_state.lock().pod_cidr.clone()
    }
}

/// The fake's images.
pub struct Images<'a>(&'a Fake);

impl Images<'_> {
    /// Adds an image to the machine, as if it had been pulled before. Returns its id.
    pub fn add(&self, image: impl Into<FakeImage>) -> Result<String, ImageNameError> {
        let mut runtime_state = self.0.shared.runtime_state.lock();
        runtime_state.images.add(&image.into()).map(|image| image.id)
    }

    /// Removes an image from the machine.
    pub fn remove(&self, image: &str) {
        self.0.shared.runtime_state.lock().images.remove(image);
    }

    /// Lets a registry offer an image. Other images cannot be pulled.
    pub fn offer(&self, image: impl Into<FakeImage>, pull: Pull) {
        self.0.shared.runtime_state.lock().images.offer(image.into(), pull);
    }

    /// The pulls under way.
    pub fn pulls(&self) -> Vec<Pulling> {
        self.0.shared.runtime_state.lock().images.pulls()
    }
}
