//! Starting one container: image, configuration, create, start, hook.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use podwright_core::attempts::StartError;
use podwright_core::config::mounts::{self as mount_plan, Mountable, VolumeSource};
use podwright_core::config::{
    self, ConfigError, ContainerInputs, ContainerProvision, EnvInputs, Environment, HostDns,
    HostNames, ImageUser, MountedVolume, PodProvision, ResolvedImage, env,
};
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{self, NextAttempt, Start};
use podwright_core::pod::{Container, Pod};
use podwright_host::change;
use podwright_host::files::{Durability, FileError};
use podwright_host::mounts::Propagation;
use podwright_proto::cri::{ContainerConfig, MountPropagation, PodSandboxConfig};

use super::execute::{Execution, Failed};
use super::stop;
use crate::causes::chain;
use crate::cgroups::PodCgroupError;
use crate::events::Severity;
use crate::gate::Act;
use crate::hooks;
use crate::images::{Absent, Present, PullPolicy, Wanted};
use crate::logs::link_name;
use crate::objects::{Fetched, ReadError};
use crate::users::{self, UserRangeError};
use crate::volumes::SubPathError;

/// The sandbox containers are started in.
#[derive(Clone, Debug, Default)]
pub(super) struct Ground {
    pub sandbox: Option<SandboxId>,
    pub attempt: u32,
    pub ips: Vec<IpAddr>,
    /// Got once for all containers of a plan, when the first one starts.
    image_volumes: Option<ImageVolumes>,
}

impl Ground {
    /// The sandbox that is there already.
    pub(super) fn in_sandbox(pod: &Pod, view: &ObservedPod) -> Self {
        let usable = plan::usable_sandbox(pod, view);
        let sandbox = view.sandboxes.iter().find(|s| Some(&s.id) == usable.as_ref());
        sandbox.map_or_else(Self::default, |sandbox| {
            let ips = sandbox.ips.clone().unwrap_or_default();
            Self::of(sandbox.id.clone(), sandbox.attempt, ips)
        })
    }

    pub(super) fn of(sandbox: SandboxId, attempt: u32, ips: Vec<IpAddr>) -> Self {
        Self { sandbox: Some(sandbox), attempt, ips, image_volumes: None }
    }
}

/// A sandbox ready to be made.
pub(super) struct ReadySandbox {
    pub config: PodSandboxConfig,
    pub handler: String,
}

/// Something on this node is in the way of a container's configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Cgroup(#[from] PodCgroupError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Users(#[from] UserRangeError),
    #[error("cannot make the log folder {path}")]
    Logs { path: String, source: std::io::Error },
    #[error("runtimeclass.node.k8s.io {class:?} not found")]
    NoRuntimeClass { class: String },
    #[error("failed to lookup RuntimeClass {class}")]
    RuntimeClass { class: String, source: ReadError },
}

fn host_dns(resolv_conf: &str) -> HostDns {
    if resolv_conf.is_empty() {
        return HostDns::Unused;
    }
    match std::fs::read_to_string(resolv_conf) {
        Ok(text) => HostDns::parse(&text),
        Err(error) => HostDns::Unreadable(error.to_string()),
    }
}

/// The images that a pod mounts as volumes, by the volume's name. One that cannot be had matters
/// only to the containers that mount it.
type ImageVolumes = BTreeMap<String, Result<MountedVolume, NotStarted>>;

/// Those of them that a container mounts.
fn mounted_by(
    container: &Container,
    volumes: Option<&ImageVolumes>,
) -> Result<BTreeMap<String, MountedVolume>, NotStarted> {
    let mounts = container.spec.volume_mounts.iter().flatten();
    let mounted = mounts.filter_map(|mount| volumes?.get_key_value(&mount.name));
    mounted.map(|(name, got)| Ok((name.clone(), got.clone()?))).collect()
}

/// Why a container did not start, in the words of its waiting state.
#[derive(Clone, Debug)]
struct NotStarted {
    reason: StartError,
    message: String,
    /// The image it wants and does not have: its own, or a volume's.
    image: Option<Arc<str>>,
    /// What was made of it and could not be started.
    instance: Option<ContainerId>,
}

impl NotStarted {
    fn new(reason: StartError, message: String) -> Self {
        Self { reason, message, image: None, instance: None }
    }
}

impl Execution<'_> {
    pub(super) async fn sandbox_config(&self, attempt: u32) -> Result<ReadySandbox, PrepareError> {
        let handler = match self.runtime_class() {
            Some(class) => self.tools.objects.runtime_handler(class).await,
            None => Ok(String::new()),
        };
        let provision = self.provision(handler).await?;
        let made = config::sandbox(self.pod, attempt, &self.tools.facts, &provision)?;
        for warning in made.warnings {
            let (reason, message) = (warning.reason, warning.message);
            match warning.about {
                config::About::Pod => {
                    self.tools.events.pod(self.pod, Severity::Warning, reason, message);
                }
                config::About::Node => {
                    let spec = self.pod.object.spec.as_ref();
                    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
                    self.tools.events.node(node, Severity::Warning, reason, message);
                }
            }
        }
        let logs = &made.config.log_directory;
        make_folder(logs).map_err(|source| PrepareError::Logs { path: logs.clone(), source })?;
        Ok(ReadySandbox { config: made.config, handler: provision.runtime_handler })
    }

    fn runtime_class(&self) -> Option<&str> {
        let spec = self.pod.object.spec.as_ref();
        let class = spec.and_then(|spec| spec.runtime_class_name.as_deref());
        class.filter(|class| !class.is_empty())
    }

    async fn provision(
        &self,
        handler: Result<String, ReadError>,
    ) -> Result<PodProvision, PrepareError> {
        let runtime_handler = handler.map_err(|source| {
            let class = self.runtime_class().unwrap_or_default().to_owned();
            match source.is_not_found() {
                true => PrepareError::NoRuntimeClass { class },
                false => PrepareError::RuntimeClass { class, source },
            }
        })?;
        let id_mappings = match config::namespaces::wants_own_users(self.pod) {
            true => Some(users::give(self.tools, &self.pod.uid).await?),
            false => None,
        };
        Ok(PodProvision {
            host_dns: host_dns(&self.tools.facts.resolv_conf),
            id_mappings,
            cgroup_parent: self.tools.cgroups.parent(self.pod)?,
            runtime_handler,
            volume_groups: self.tools.volumes.groups(&self.pod.uid),
            ..PodProvision::default()
        })
    }

    pub(super) async fn start_container(
        &mut self,
        start: &Start,
        ground: &mut Ground,
    ) -> Result<(), Failed> {
        let pod = self.pod.clone();
        let Some(container) = pod.container(&start.container) else { return Ok(()) };
        let (name, key) = (&container.name, container.backoff_key);
        if let Some(after) = &start.after
            && let Some(instance) = self.view.instances.iter().find(|i| i.id == *after)
        {
            let limits = &self.tools.settings.crash_backoff;
            self.attempts().note_restart(name, key, instance, self.tools.clock.now(), limits);
        }
        let outcome = self.try_start(container, start, ground).await;
        let counted = match &outcome {
            Ok(()) => Ok(()),
            Err(failure) => Err(failure.reason),
        };
        self.tools.metrics.starts.container(container.kind, counted);
        match outcome {
            Ok(()) => {
                self.attempts().note_started(name, key);
                Ok(())
            }
            Err(NotStarted { reason, message, image, instance }) => {
                let mut shown = match reason {
                    StartError::CreateContainerConfigError
                    | StartError::CreateContainerError
                    | StartError::RunContainerError => message.clone(),
                    _ => reason.as_str().to_owned(),
                };
                // An id is new each time, and would make a new event of each.
                if let Some(instance) = instance {
                    shown = shown.replace(instance.as_str(), name);
                }
                // A hook has told itself; a back-off is told when it shows.
                let told = [StartError::PostStartHookError, StartError::ImagePullBackOff];
                if !told.contains(&reason) {
                    let text = format!("Error: {shown}");
                    self.tools.events.container(&pod, container, Severity::Warning, "Failed", text);
                }
                Err(self.not_started(container, reason, message, image.as_ref()))
            }
        }
    }

    async fn try_start(
        &mut self,
        container: &Container,
        start: &Start,
        ground: &mut Ground,
    ) -> Result<(), NotStarted> {
        let name = &container.name;
        let Some(sandbox) = &ground.sandbox else {
            let message = "the pod has no sandbox".into();
            return Err(NotStarted::new(StartError::CreateContainerError, message));
        };
        if ground.image_volumes.is_none() {
            ground.image_volumes = Some(self.get_image_volumes().await);
        }
        self.begin(format!("getting the image of {name}"));
        let image = self.image(container.into()).await?;
        let attempt = self.attempt_number(container, start.attempt);
        let image = ResolvedImage {
            reference: image.image_ref,
            user: ImageUser::new(image.uid, &image.username),
        };
        let image_volumes = mounted_by(container, ground.image_volumes.as_ref())?;
        let prepared = self.configure(container, attempt, &image, image_volumes, ground).await;
        let (config, sandbox_config) = prepared.map_err(|error| {
            NotStarted::new(StartError::CreateContainerConfigError, chain(&error))
        })?;
        self.tools.allocations.note_start(self.pod, container);
        let id = self.create(container, attempt, sandbox, config, sandbox_config).await?;
        self.run(container, attempt, &id).await?;
        self.post_start(container, &id, ground).await
    }

    /// Gets an image, unless it is too early to pull it again.
    async fn image(&mut self, wanted: Wanted<'_>) -> Result<Present, NotStarted> {
        let image = wanted.image;
        let now = self.tools.clock.now();
        let held = self.attempts().pull_hold(image, now).map(|(_, error)| error.to_owned());
        let present = self.tools.images.ensure(self.pod, wanted, held.as_deref()).await;
        let mut attempts = self.attempts();
        match present {
            Ok(present) => {
                attempts.note_pulled(image);
                Ok(present)
            }
            Err(Absent { reason, message, after_pull }) => {
                if after_pull {
                    attempts.note_pull_failure(image, reason, &message, self.tools.clock.now());
                }
                Err(NotStarted { reason, message, image: Some(image.clone()), instance: None })
            }
        }
    }

    /// Gets the images that the pod mounts as volumes, before any container's own.
    async fn get_image_volumes(&mut self) -> ImageVolumes {
        let mut found = ImageVolumes::new();
        let pod = self.pod.clone();
        let spec = pod.object.spec.as_ref();
        for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let Some(image) = &volume.image else { continue };
            let user_image = image.reference.clone().unwrap_or_default();
            let policy = PullPolicy::of(image.pull_policy.as_deref());
            self.begin(format!("getting the image of volume {}", volume.name));
            let wanted = Wanted { image: &user_image.as_str().into(), policy, container: None };
            let got = self.image(wanted).await.map(|present| {
                let source = VolumeSource::Image { reference: present.image_ref, user_image };
                MountedVolume { source, read_only: true, relabel: false }
            });
            found.insert(volume.name.clone(), got);
        }
        found
    }

    /// The restart count: one past the newest instance, or past the newest log.
    fn attempt_number(&self, container: &Container, next: NextAttempt) -> u32 {
        match next {
            NextAttempt::Number(number) => number,
            NextAttempt::PastLogs(least) => {
                let logs = config::log_directory(self.pod, &self.tools.facts);
                past_logs(&Path::new(&logs).join(&*container.name)).max(least)
            }
        }
    }

    async fn configure(
        &self,
        container: &Container,
        attempt: u32,
        image: &ResolvedImage,
        image_volumes: BTreeMap<String, MountedVolume>,
        ground: &Ground,
    ) -> Result<(ContainerConfig, PodSandboxConfig), PrepareError> {
        let (pod, tools) = (self.pod, self.tools);
        let handler = match self.runtime_class() {
            Some(class) => tools.objects.known_runtime_handler(class).await,
            None => Ok(String::new()),
        };
        let provision = self.provision(handler).await?;
        let sandbox = config::sandbox(pod, ground.attempt, &tools.facts, &provision)?;
        let fetched = self.env_sources(env::needs(container)).await;
        let services = match pod.is_static() {
            // It does not wait for an API server that may depend on it.
            true => Some(tools.objects.known_services()),
            false => tools.objects.services().await,
        };
        let environment = Environment::build(&EnvInputs {
            pod,
            container,
            pod_ips: &ground.ips,
            facts: &tools.facts,
            services: services.as_ref().map(|services| services.as_slice()),
            sources: &fetched,
            granted: &[],
        })?;
        let mut volumes = tools.volumes.mounted(&pod.uid);
        volumes.extend(image_volumes);
        let handler = &provision.runtime_handler;
        let mounts =
            mount_plan::requests(pod, container, &environment, &volumes, &tools.facts, handler)?;
        let sub_paths = self.bind_sub_paths(container, &mounts).await?;
        let (etc_hosts, termination_log) = self.write_files(container, ground)?;
        let logs = format!("{}/{}", config::log_directory(pod, &tools.facts), container.name);
        make_folder(&logs).map_err(|source| PrepareError::Logs { path: logs.clone(), source })?;
        let target = container.target.as_ref().and_then(|name| self.view.newest(name));
        let config = config::container(&ContainerInputs {
            pod,
            container,
            attempt,
            facts: &tools.facts,
            pod_provision: &provision,
            provision: &ContainerProvision::default(),
            image,
            environment: &environment,
            mounts: &mounts,
            sub_paths: &sub_paths,
            block_devices: &mount_plan::block_devices(container, &volumes)?,
            etc_hosts: etc_hosts.as_deref(),
            termination_log: termination_log.as_deref(),
            target: target.map(|instance| &instance.id),
        })?;
        Ok((config, sandbox.config))
    }

    async fn env_sources(&self, needs: Vec<env::Need>) -> Fetched {
        let files: Vec<(String, String)> = needs
            .iter()
            .filter_map(|need| match need {
                env::Need::File { volume, path } => Some((volume.clone(), path.clone())),
                env::Need::Object { .. } => None,
            })
            .collect();
        let mut fetched = self.tools.objects.fetch(self.pod, needs).await;
        for (volume, path) in files {
            let read = self.tools.volumes.env_file(&self.pod.uid, &volume, &path).await;
            if let Some(read) = read {
                fetched.add_file(&volume, &path, read);
            }
        }
        fetched
    }

    async fn bind_sub_paths(
        &self,
        container: &Container,
        mounts: &[mount_plan::MountRequest],
    ) -> Result<BTreeMap<usize, String>, PrepareError> {
        let mut bound = BTreeMap::new();
        for mount in mounts {
            let Mountable::SubPath { volume_path, sub_path } = &mount.what else { continue };
            let place = format!("{}/{}/{}", mount.volume, container.name, mount.index);
            let uid = &self.pod.uid;
            let propagation = match mount.propagation {
                MountPropagation::PropagationBidirectional => Propagation::Both,
                MountPropagation::PropagationPrivate
                | MountPropagation::PropagationHostToContainer => Propagation::FromSource,
            };
            let volumes = &self.tools.volumes;
            let made = volumes.bind_sub_path(uid, volume_path, sub_path, &place, propagation);
            let path = made.await.map_err(|error| {
                // The user is told nothing of the node's files; the log is.
                tracing::warn!(error = chain(&error), volume = mount.volume, "subPath");
                let (volume, container) = (mount.volume.clone(), container.name.to_string());
                match error {
                    SubPathError::Create(_) => ConfigError::SubPathNotCreated { volume, container },
                    SubPathError::File(_) | SubPathError::Mount(_) | SubPathError::CutOff => {
                        ConfigError::SubPathNotPrepared { volume, container }
                    }
                }
            })?;
            bound.insert(mount.index, path.to_string_lossy().into_owned());
        }
        Ok(bound)
    }

    /// `/etc/hosts` and the file for the container's last words.
    fn write_files(
        &self,
        container: &Container,
        ground: &Ground,
    ) -> Result<(Option<String>, Option<String>), PrepareError> {
        let (pod, tools) = (self.pod, self.tools);
        let folder = tools.volumes.open_pod_dir(&pod.uid)?;
        let mut etc_hosts = None;
        if mount_plan::needs_etc_hosts(pod, container, &ground.ips) {
            let names = HostNames::of(pod, &tools.facts)?;
            let own = match pod.host_network {
                true => std::fs::read("/etc/hosts").unwrap_or_default(),
                false => Vec::new(),
            };
            let content = config::hosts::etc_hosts(pod, &ground.ips, &names, &own);
            folder.write_atomic("etc-hosts", &content, 0o644, Durability::Cache)?;
            etc_hosts = Some(folder.path().join("etc-hosts").to_string_lossy().into_owned());
        }
        let mut termination_log = None;
        if mount_plan::termination_message_path(container).is_some() {
            let place = Path::new("containers").join(&*container.name);
            folder.create_dir_all(&place, 0o750)?;
            let now = tools.clock.now();
            let file = place.join(format!("{:08x}", fresh_number(now.wall.as_nanosecond())));
            folder.write_atomic(&file, b"", 0o666, Durability::Cache)?;
            termination_log = Some(folder.path().join(file).to_string_lossy().into_owned());
        }
        Ok((etc_hosts, termination_log))
    }

    async fn create(
        &mut self,
        container: &Container,
        attempt: u32,
        sandbox: &SandboxId,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<ContainerId, NotStarted> {
        self.begin(format!("creating {}", container.name));
        let (runtime, sandbox) = (self.tools.runtime.clone(), sandbox.clone());
        let place = self.tools.starts.enter(self.rank(Act::CreateContainer)).await;
        let create =
            async move { runtime.create_container(&sandbox, config, sandbox_config).await };
        let created = self.lane.run(place.during(create)).await;
        match created {
            Ok(id) => {
                let text = "Container created".into();
                self.tools.events.container(self.pod, container, Severity::Normal, "Created", text);
                Ok(id)
            }
            Err(error) => {
                // It may exist after all; another try must not collide with its name.
                if error.is_ambiguous() {
                    let (name, key) = (&container.name, container.backoff_key);
                    self.attempts().note_attempt_taken(name, key, attempt);
                }
                let reason = StartError::CreateContainerError;
                Err(NotStarted::new(reason, error.message))
            }
        }
    }

    async fn run(
        &mut self,
        container: &Container,
        attempt: u32,
        id: &ContainerId,
    ) -> Result<(), NotStarted> {
        self.begin(format!("starting {}", container.name));
        let (runtime, made) = (self.tools.runtime.clone(), id.clone());
        let place = self.tools.starts.enter(self.rank(Act::StartContainer)).await;
        let start = async move { runtime.start_container(&made).await };
        let started = self.lane.run(place.during(start)).await;
        if let Err(error) = started {
            let failed = NotStarted::new(StartError::RunContainerError, error.message);
            return Err(NotStarted { instance: Some(id.clone()), ..failed });
        }
        let text = "Container started".into();
        self.tools.events.container(self.pod, container, Severity::Normal, "Started", text);
        self.note(&format!("{} started", container.name));
        self.link_log(container, attempt, id);
        Ok(())
    }

    /// The link by which log collectors find a container's log.
    fn link_log(&self, container: &Container, attempt: u32, id: &ContainerId) {
        let logs = config::log_directory(self.pod, &self.tools.facts);
        let log = Path::new(&logs).join(config::log_path(&container.name, attempt));
        if !log.exists() {
            return;
        }
        let file = link_name(self.pod, &container.name, id);
        let link = self.tools.settings.log_links_dir.join(file);
        if let Err(error) = change::symlink(&log, &link) {
            tracing::debug!(%error, link = %link.display(), "no link to the log");
        }
    }

    async fn post_start(
        &mut self,
        container: &Container,
        id: &ContainerId,
        ground: &Ground,
    ) -> Result<(), NotStarted> {
        let Some(handler) = container.post_start() else { return Ok(()) };
        self.begin(format!("running the postStart hook of {}", container.name));
        let pod_ip = ground.ips.first().copied().or_else(|| stop::pod_ip(self.pod, self.view));
        let place = hooks::Place { pod: self.pod, container, instance: id, pod_ip };
        let Err(error) = hooks::run(self.tools, &place, handler).await else { return Ok(()) };
        let text = "PostStartHook failed".into();
        let reason = "FailedPostStartHook";
        self.tools.events.container(self.pod, container, Severity::Warning, reason, text);
        self.stop_after_hook(container, id.clone()).await;
        Err(NotStarted::new(StartError::PostStartHookError, error.to_string()))
    }
}

fn make_folder(path: &str) -> std::io::Result<()> {
    change::make_folders(Path::new(path), 0o755)
}

/// One more than the largest N among `N.log` and what rotation made of it.
fn past_logs(folder: &Path) -> u32 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let number = |name: std::ffi::OsString| {
        let name = name.into_string().ok()?;
        let (number, rest) = name.split_once('.')?;
        rest.starts_with("log").then(|| number.parse::<u32>().ok())?
    };
    let largest = entries.flatten().filter_map(|entry| number(entry.file_name())).max();
    largest.map_or(0, |number| number.saturating_add(1))
}

/// Eight hex digits that differ from start to start.
fn fresh_number(nanos: i128) -> u32 {
    let bytes = nanos.to_le_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_21_the_attempt_follows_the_newest_log() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(past_logs(folder.path()), 0);
        for name in ["0.log", "3.log.20260101-000000.gz", "2.log", "notes.txt", "9.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(past_logs(folder.path()), 4);
    }
}
