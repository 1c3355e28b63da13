//! Containers: creation, start, exit, removal.

use std::sync::Arc;
use std::time::Duration;

use podwright_api::image_name::full_name;
use podwright_proto::cri;
use tokio::sync::watch;
use tonic::Status;

use super::events::EventKind;
use super::instances::InstanceEvent;
use super::journal::Violation;
use super::names::Reservation;
use super::output;
use super::rpc::PodRef;
use super::runtime_state::RuntimeState;
use super::script::{Begin, End, OnTerm, Run, Script};
use super::serve::{Pace, Shared};

#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) pod: PodRef,
    pub(super) sandbox: String,
    pub(super) config: cri::ContainerConfig,
    /// Absolute.
    pub(super) log_path: String,
    /// The id of its image, which may be removed meanwhile.
    pub(super) image_id: String,
    pub(super) script: Script,
    run: Run,
    pub(super) state: State,
    pub(super) created_at: i64,
    pub(super) started_at: i64,
    pub(super) finished_at: i64,
    pub(super) pid: u32,
    busy: Option<Busy>,
    /// SIGTERM was sent; a second one changes nothing.
    told_to_stop: bool,
    /// Becomes true with the exit.
    exited: watch::Sender<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Created,
    Running,
    Exited(Exit),
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    /// Empty where the code is sufficient.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// A call is working on the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Starting,
    Removing,
}

impl State {
    pub(super) fn on_wire(&self) -> cri::ContainerState {
        match self {
            Self::Created => cri::ContainerState::ContainerCreated,
            Self::Running => cri::ContainerState::ContainerRunning,
            Self::Exited(_) => cri::ContainerState::ContainerExited,
            Self::Unknown => cri::ContainerState::ContainerUnknown,
        }
    }

    /// Whether there is, or may be, a process.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Self::Running | Self::Unknown => true,
            Self::Created | Self::Exited(_) => false,
        }
    }
}

impl Container {
    /// The user id in its configuration.
    pub(super) fn user(&self) -> Option<i64> {
        let context = self.config.linux.as_ref()?.security_context.as_ref()?;
        context.run_as_user.as_ref().map(|user| user.value)
    }

    pub(super) fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |meta| meta.attempt)
    }

    pub(super) fn exit_watch(&self) -> watch::Receiver<bool> {
        self.exited.subscribe()
    }
}

pub(super) async fn create(
    shared: Arc<Shared>,
    request: cri::CreateContainerRequest,
    pace: Pace,
) -> Result<cri::CreateContainerResponse, Status> {
    let (id, reservation) = shared.runtime_state.lock().reserve_container(&request)?;
    pace.keep().await;
    let chooser = shared.runtime_state.lock().chooser.clone();
    // Not under the lock: the callback may access the fake.
    let chosen = chooser.zip(request.config.as_ref()).and_then(|(choose, config)| choose(config));
    shared.runtime_state.lock().add_container(&id, request, chosen)?;
    reservation.keep();
    Ok(cri::CreateContainerResponse { container_id: id })
}

pub(super) async fn start(
    shared: Arc<Shared>,
    id: String,
    pace: Pace,
) -> Result<cri::StartContainerResponse, Status> {
    shared.runtime_state.lock().begin_start(&id)?;
    let hold = Hold::new(&shared, &id, Busy::Starting);
    pace.keep().await;
    let started = shared.runtime_state.lock().start_container(&id);
    hold.release();
    started.map(|()| cri::StartContainerResponse {})
}

pub(super) async fn stop(
    shared: Arc<Shared>,
    id: String,
    grace: Duration,
    pace: Pace,
) -> Result<cri::StopContainerResponse, Status> {
    let mut exited = shared.runtime_state.lock().container(&id)?.exit_watch();
    pace.keep().await;
    if !grace.is_zero() {
        shared.runtime_state.lock().terminate(&id);
        let alive = shared.runtime_state.lock().is_alive(&id);
        // An error means that the container was removed, which counts as an exit.
        if !alive || tokio::time::timeout(grace, exited.wait_for(|exited| *exited)).await.is_ok() {
            return Ok(cri::StopContainerResponse {});
        }
    }
    shared.runtime_state.lock().end_container(&id, &End::killed());
    Ok(cri::StopContainerResponse {})
}

pub(super) async fn remove(
    shared: Arc<Shared>,
    id: String,
    pace: Pace,
) -> Result<cri::RemoveContainerResponse, Status> {
    // A container that does not exist is already removed.
    if shared.runtime_state.lock().begin_remove(&id)? {
        let hold = Hold::new(&shared, &id, Busy::Removing);
        pace.keep().await;
        shared.runtime_state.lock().delete_container(&id);
        hold.release();
    }
    Ok(cri::RemoveContainerResponse {})
}

/// A call that works on a container. If it is interrupted, the container does not stay busy.
struct Hold {
    shared: Arc<Shared>,
    id: String,
    busy: Busy,
    generation: u64,
    released: bool,
}

impl Hold {
    fn new(shared: &Arc<Shared>, id: &str, busy: Busy) -> Self {
        let generation = shared.generation();
        Self { shared: shared.clone(), id: id.to_owned(), busy, generation, released: false }
    }

    fn release(mut self) {
        self.released = true;
        self.let_go(false);
    }

    fn let_go(&self, cut_short: bool) {
        let same_runtime = self.shared.generation() == self.generation;
        let mut runtime_state = self.shared.runtime_state.lock();
        if let Some(container) = runtime_state.containers.get_mut(&self.id) {
            container.busy = None;
        }
        // A runtime that crashed during the call left the container unchanged.
        if cut_short && same_runtime && self.busy == Busy::Starting {
            runtime_state.fail_start(&self.id, "context canceled");
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.released {
            self.let_go(true);
        }
    }
}

impl RuntimeState {
    pub(super) fn container(&self, id: &str) -> Result<&Container, Status> {
        self.containers.get(id).ok_or_else(|| {
            let text = format!("an error occurred when try to find container {id:?}: not found");
            Status::not_found(text)
        })
    }

    pub(super) fn is_alive(&self, id: &str) -> bool {
        self.containers.get(id).is_some_and(|container| container.state.is_alive())
    }

    fn reserve_container(
        &mut self,
        request: &cri::CreateContainerRequest,
    ) -> Result<(String, Reservation), Status> {
        let id = &request.pod_sandbox_id;
        let Some(sandbox) = self.sandboxes.get(id) else {
            let text = format!("failed to find sandbox id {id:?}: not found");
            return Err(Status::not_found(text));
        };
        if !sandbox.ready {
            let text = format!(
                "failed to get sandbox container task: no running task found: task {id} not found: \
                 not found"
            );
            return Err(Status::not_found(text));
        }
        let config = request.config.as_ref();
        let Some(meta) = config.and_then(|config| config.metadata.as_ref()) else {
            return Err(Status::unknown("container config must include metadata"));
        };
        let name = container_name(meta, &sandbox.pod);
        let id = self.next_id();
        let reservation = self.container_names.reserve("container", name, id.clone())?;
        let image = config.and_then(|config| config.image.as_ref());
        let image = image.map_or("", |image| image.image.as_str());
        if self.images.find(image).is_none() {
            let text = format!("failed to resolve image {image:?}: not found");
            return Err(Status::not_found(text));
        }
        Ok((id, reservation))
    }

    fn add_container(
        &mut self,
        id: &str,
        request: cri::CreateContainerRequest,
        chosen: Option<Script>,
    ) -> Result<(), Status> {
        let config = request.config.unwrap_or_default();
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let log_path = match (sandbox.config.log_directory.as_str(), config.log_path.as_str()) {
            ("", _) | (_, "") => String::new(),
            (directory, file) => format!("{directory}/{file}"),
        };
        let (pod, sandbox) = (sandbox.pod.clone(), sandbox.id.clone());
        let spec = config.image.clone().unwrap_or_default();
        let image = self.images.find(&spec.image).cloned().unwrap_or_default();
        let script = chosen.unwrap_or_else(|| self.script_of(&spec, &image));
        let name = config.metadata.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
        let container = Container {
            id: id.to_owned(),
            name,
            pod,
            sandbox,
            log_path,
            image_id: image.id,
            run: script.run(0),
            script,
            config,
            state: State::Created,
            created_at: self.stamp(),
            started_at: 0,
            finished_at: 0,
            pid: 0,
            busy: None,
            told_to_stop: false,
            exited: watch::Sender::new(false),
        };
        self.containers.insert(id.to_owned(), container);
        self.note_instance(id, InstanceEvent::Created);
        self.publish(&EventKind::Created, id);
        Ok(())
    }

    /// By the name the pod gave the image, or by any name the image has.
    fn script_of(&self, spec: &cri::ImageSpec, image: &cri::Image) -> Script {
        let given = [&spec.user_specified_image, &spec.image];
        let given = given.into_iter().filter_map(|name| full_name(name).ok());
        let names = given.chain(image.repo_tags.iter().cloned());
        let mut names = names.chain(image.repo_digests.iter().cloned());
        let script = names.find_map(|name| self.scripts.get(&name).cloned());
        script.unwrap_or_else(Script::forever)
    }

    fn begin_start(&mut self, id: &str) -> Result<(), Status> {
        self.container(id)?;
        let Some(container) = self.containers.get_mut(id) else { return Ok(()) };
        let obstacle = match (&container.state, container.busy) {
            (State::Created, None) => {
                container.busy = Some(Busy::Starting);
                return Ok(());
            }
            (State::Created, Some(Busy::Starting)) => {
                "container is already in starting state".to_owned()
            }
            (State::Created, Some(Busy::Removing)) => {
                "container is in removing state, can't be started".to_owned()
            }
            (state @ (State::Running | State::Exited(_) | State::Unknown), _) => {
                format!("container is in {} state", state.on_wire().as_str_name())
            }
        };
        let text = format!("failed to set starting state for container {id:?}: {obstacle}");
        Err(Status::unknown(text))
    }

    fn start_container(&mut self, id: &str) -> Result<(), Status> {
        let container = self.container(id)?;
        let (pod, name) = (container.pod.clone(), container.name.clone());
        let sandbox = container.sandbox.clone();
        let failure = match self.sandboxes.get(&sandbox) {
            None => Some(Status::not_found(format!("sandbox {sandbox:?} not found: not found"))),
            Some(sandbox) if !sandbox.ready => {
                Some(Status::unknown(format!("sandbox container {:?} is not running", sandbox.id)))
            }
            Some(_) => None,
        };
        if let Some(failure) = failure {
            self.fail_start(id, failure.message());
            return Err(failure);
        }
        let rivals = self
            .containers
            .values()
            .filter(|other| other.id != id && other.name == name && other.pod.uid == pod.uid);
        let rival =
            rivals.filter(|other| other.state == State::Running).map(|r| r.id.clone()).next();
        if let Some(rival) = rival {
            let ids = [rival, id.to_owned()];
            self.journal.report(Violation::TwoRunning {
                pod: pod.clone(),
                container: name.clone(),
                ids,
            });
        }
        let starts = self.starts.entry((pod.uid, name)).or_default();
        let run_number = *starts;
        *starts += 1;
        let (started_at, pid, now) = (self.stamp(), self.pid(), self.now());
        let Some(container) = self.containers.get_mut(id) else { return Ok(()) };
        container.run = container.script.run(run_number);
        if let Begin::Refuses(why) = &container.run.begins {
            let text = format!("failed to create containerd task: {why}");
            self.fail_start(id, &text);
            return Err(Status::unknown(text));
        }
        if let Some(path) = output::deleted_source(self.options.writes_below.as_deref(), container)
        {
            let text = format!(
                "failed to create containerd task: failed to create shim task: OCI runtime create \
                 failed: error mounting {path:?}: no such file or directory"
            );
            self.fail_start(id, &text);
            return Err(Status::unknown(text));
        }
        container.state = State::Running;
        (container.started_at, container.pid) = (started_at, pid);
        output::open_log(self.options.writes_below.as_deref(), container, now);
        let ends = container.run.ends.clone();
        self.note_instance(id, InstanceEvent::Started);
        self.publish(&EventKind::Started, id);
        if let Some((after, end)) = ends {
            self.end_later(id, after, end);
        }
        Ok(())
    }

    /// The program never ran.
    fn fail_start(&mut self, id: &str, why: &str) {
        let finished_at = self.stamp();
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.state != State::Created {
            return;
        }
        let exit = Exit { code: 128, reason: "StartError", message: why.to_owned() };
        container.state = State::Exited(exit);
        container.finished_at = finished_at;
        container.exited.send_replace(true);
        self.note_instance(id, InstanceEvent::Exited { code: 128 });
        self.touch();
    }

    /// SIGTERM.
    fn terminate(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if !container.state.is_alive() || std::mem::replace(&mut container.told_to_stop, true) {
            return;
        }
        match container.run.on_term {
            OnTerm::Exits { after, code } if after.is_zero() => {
                self.end_container(id, &End::code(code));
            }
            OnTerm::Exits { after, code } => self.end_later(id, after, End::code(code)),
            OnTerm::Ignores => {}
        }
    }

    fn end_later(&self, id: &str, after: Duration, end: End) {
        let Some(container) = self.containers.get(id) else { return };
        let (me, mut exited, id) = (self.me.clone(), container.exit_watch(), id.to_owned());
        tokio::spawn(async move {
            // A container that ended otherwise, or was removed, needs no timer.
            let otherwise = tokio::time::timeout(after, exited.wait_for(|exited| *exited)).await;
            if otherwise.is_err()
                && let Some(shared) = me.upgrade()
            {
                shared.runtime_state.lock().end_container(&id, &end);
            }
        });
    }

    /// The process ends. No effect where there was none.
    pub(super) fn end_container(&mut self, id: &str, end: &End) {
        let finished_at = self.stamp();
        let Some(container) = self.containers.get_mut(id) else { return };
        if !container.state.is_alive() {
            return;
        }
        let reason = if end.oom { "OOMKilled" } else { "" };
        container.state = State::Exited(Exit { code: end.code, reason, message: String::new() });
        container.finished_at = finished_at;
        output::write_files(self.options.writes_below.as_deref(), container);
        container.exited.send_replace(true);
        self.note_instance(id, InstanceEvent::Exited { code: end.code });
        if end.oom {
            self.publish(&EventKind::RanOutOfMemory, id);
        }
        self.publish(&EventKind::Exited { code: end.code }, id);
    }

    /// The machine went down: the exit code is unknown.
    pub(super) fn lose_container(&mut self, id: &str) {
        let finished_at = self.stamp();
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.state.is_alive() {
            let exit = Exit { code: 255, reason: "Unknown", message: String::new() };
            container.state = State::Exited(exit);
            container.finished_at = finished_at;
            container.exited.send_replace(true);
            container.busy = None;
            self.note_instance(id, InstanceEvent::Exited { code: 255 });
        } else {
            container.busy = None;
        }
    }

    /// Whether there is such a container.
    fn begin_remove(&mut self, id: &str) -> Result<bool, Status> {
        let Some(container) = self.containers.get_mut(id) else { return Ok(false) };
        let obstacle = match container.busy {
            None => {
                container.busy = Some(Busy::Removing);
                return Ok(true);
            }
            Some(Busy::Starting) => "container is in starting state, can't be removed",
            Some(Busy::Removing) => "container is already in removing state",
        };
        let text = format!("failed to set removing state for container {id:?}: {obstacle}");
        Err(Status::unknown(text))
    }

    /// Kills it first if necessary.
    pub(super) fn delete_container(&mut self, id: &str) {
        self.end_container(id, &End::killed());
        self.publish(&EventKind::Deleted, id);
        self.note_instance(id, InstanceEvent::Removed);
        let Some(container) = self.containers.remove(id) else { return };
        if let Some(meta) = &container.config.metadata {
            self.container_names.release(&container_name(meta, &container.pod));
        }
        self.touch();
    }

    /// The log was rotated; creates a new one.
    pub(super) fn reopen_log(&mut self, id: &str) {
        if let Some(container) = self.containers.get(id) {
            output::reopen_log(self.options.writes_below.as_deref(), container);
        }
    }
}

fn container_name(meta: &cri::ContainerMetadata, of: &PodRef) -> String {
    let PodRef { uid, name } = of;
    format!("{}_{}_{}_{uid}_{}", meta.name, name.name, name.namespace, meta.attempt)
}
