//! Container start: image, configuration, create, start, postStart hook.

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
use podwright_core::start_order::StartStep;
use podwright_host::change;
use podwright_host::files::{Durability, FileError};
use podwright_host::mounts::Propagation;
use podwright_proto::cri::{ContainerConfig, MountPropagation, PodSandboxConfig};

use super::execute::{Execution, Failed};
use super::stop;
use crate::error_chain::chain;
use crate::report::events::Severity;
use crate::resources::cgroups::PodCgroupError;
use crate::resources::objects::{Fetched, ReadError};
use crate::resources::users::{self, UserRangeError};
use crate::resources::volumes::SubPathError;
use crate::runtime::images::{ImageRequest, ImageUnavailable, PresentImage, PullPolicy};
use crate::runtime::logs::link_name;
use crate::worker::hooks;

/// The sandbox containers are started in.
#[derive(Clone, Debug, Default)]
pub(super) struct SandboxContext {
    pub sandbox: Option<SandboxId>,
    pub attempt: u32,
    pub ips: Vec<IpAddr>,
    /// Resolved once per plan, when the first container starts.
    image_volumes: Option<ImageVolumes>,
}

impl SandboxContext {
    /// The existing sandbox.
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

/// Configuration of a sandbox to be created.
pub(super) struct ReadySandbox {
    pub config: PodSandboxConfig,
    pub handler: String,
}

/// The configuration of a sandbox or container cannot be built on this node.
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
    #[error("cannot read /etc/hosts of this machine")]
    Hosts(#[source] std::io::Error),
    #[error("cannot create the log directory {path}")]
    Logs { path: String, source: std::io::Error },
    #[error("runtimeclass.node.k8s.io {class:?} not found")]
    NoRuntimeClass { class: String },
    #[error("failed to lookup RuntimeClass {class}")]
    RuntimeClass { class: String, source: ReadError },
}

pub(crate) fn host_dns(resolv_conf: &str) -> HostDns {
    if resolv_conf.is_empty() {
        return HostDns::Unused;
    }
    match std::fs::read_to_string(resolv_conf) {
        Ok(text) => HostDns::parse(&text),
        Err(error) => HostDns::Unreadable(error.to_string()),
    }
}

/// The images that a pod mounts as volumes, by volume name. A missing image affects only the
/// containers that mount it.
type ImageVolumes = BTreeMap<String, Result<MountedVolume, NotStarted>>;

/// The image volumes that a container mounts.
fn mounted_by(
    container: &Container,
    volumes: Option<&ImageVolumes>,
) -> Result<BTreeMap<String, MountedVolume>, NotStarted> {
    let mounts = container.spec.volume_mounts.iter().flatten();
    let mounted = mounts.filter_map(|mount| volumes?.get_key_value(&mount.name));
    mounted.map(|(name, got)| Ok((name.clone(), got.clone()?))).collect()
}

fn uses_sub_paths(container: &Container) -> bool {
    container.spec.volume_mounts.iter().flatten().any(|mount| {
        let set = |path: &Option<String>| path.as_ref().is_some_and(|path| !path.is_empty());
        set(&mount.sub_path) || set(&mount.sub_path_expr)
    })
}

/// Why a container did not start, as its waiting state reports it.
#[derive(Clone, Debug)]
struct NotStarted {
    reason: StartError,
    message: String,
    /// The missing image: its own, or a volume's.
    image: Option<Arc<str>>,
    /// The instance that was created and could not be started.
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
            Some(class) => self.context.resources.objects.runtime_handler(class).await,
            None => Ok(String::new()),
        };
        let provision = self.provision(self.or_sandbox_handler(handler)).await?;
        let made = config::sandbox(self.pod, attempt, &self.context.facts_now(), &provision)?;
        for warning in made.warnings {
            let (reason, message) = (warning.reason, warning.message);
            match warning.about {
                config::WarningTarget::Pod => {
                    self.context.reporting.events.pod(self.pod, Severity::Warning, reason, message);
                }
                config::WarningTarget::Node => {
                    let spec = self.pod.object.spec.as_ref();
                    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
                    self.context.reporting.events.node(node, Severity::Warning, reason, message);
                }
            }
        }
        let logs = &made.config.log_directory;
        make_log_directory(logs)
            .map_err(|source| PrepareError::Logs { path: logs.clone(), source })?;
        Ok(ReadySandbox { config: made.config, handler: provision.runtime_handler })
    }

    fn runtime_class(&self) -> Option<&str> {
        let spec = self.pod.object.spec.as_ref();
        let class = spec.and_then(|spec| spec.runtime_class_name.as_deref());
        class.filter(|class| !class.is_empty())
    }

    /// While the RuntimeClass cannot be read, the handler of the pod's newest sandbox is used: an
    /// agent that starts during an outage of the API server has no other source. A sandbox without
    /// a reported handler is ignored.
    fn or_sandbox_handler(&self, handler: Result<String, ReadError>) -> Result<String, ReadError> {
        match handler {
            Err(error) if !error.is_not_found() => {
                let reported =
                    self.view.newest_sandbox().map(|sandbox| sandbox.handler.to_string());
                reported.filter(|handler| !handler.is_empty()).ok_or(error)
            }
            handler => handler,
        }
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
            true => Some(users::allocate(&self.context.resources, &self.pod.uid).await?),
            false => None,
        };
        Ok(PodProvision {
            host_dns: host_dns(&self.context.facts.resolv_conf),
            id_mappings,
            cgroup_parent: self.context.resources.cgroups.parent(self.pod)?,
            runtime_handler,
            volume_groups: self.context.resources.volumes.groups(&self.pod.uid),
            ..PodProvision::default()
        })
    }

    pub(super) async fn start_container(
        &mut self,
        start: &Start,
        sandbox_context: &mut SandboxContext,
    ) -> Result<(), Failed> {
        let pod = self.pod.clone();
        let Some(container) = pod.container(&start.container) else { return Ok(()) };
        let (name, key) = (&container.name, container.backoff_key);
        if let Some(after) = &start.after
            && let Some(instance) = self.view.instances.iter().find(|i| i.id == *after)
        {
            let limits = &self.context.settings.crash_backoff;
            self.attempts().note_restart(name, key, instance, self.context.clock.now(), limits);
        }
        let outcome = self.try_start(container, start, sandbox_context).await;
        let counted = match &outcome {
            Ok(()) => Ok(()),
            Err(failure) => Err(failure.reason),
        };
        self.context.reporting.metrics.starts.container(container.kind, counted);
        match outcome {
            Ok(()) => {
                self.attempts().note_started(name, key);
                Ok(())
            }
            Err(NotStarted { reason, message, image, instance }) => {
                let mut text = match reason {
                    StartError::CreateContainerConfigError
                    | StartError::CreateContainerError
                    | StartError::RunContainerError => message.clone(),
                    _ => reason.as_str().to_owned(),
                };
                // An ID differs each time and would make each event a new one.
                if let Some(instance) = instance {
                    text = text.replace(instance.as_str(), name);
                }
                // Hooks emit their own event; a back-off is reported by the next plan.
                let reported = [StartError::PostStartHookError, StartError::ImagePullBackOff];
                if !reported.contains(&reason) {
                    let text = format!("Error: {text}");
                    self.context.reporting.events.container(
                        &pod,
                        container,
                        Severity::Warning,
                        "Failed",
                        text,
                    );
                }
                Err(self.not_started(container, reason, message, image.as_ref()))
            }
        }
    }

    async fn try_start(
        &mut self,
        container: &Container,
        start: &Start,
        sandbox_context: &mut SandboxContext,
    ) -> Result<(), NotStarted> {
        let name = &container.name;
        let Some(sandbox) = &sandbox_context.sandbox else {
            let message = "the pod has no sandbox".into();
            return Err(NotStarted::new(StartError::CreateContainerError, message));
        };
        if sandbox_context.image_volumes.is_none() {
            sandbox_context.image_volumes = Some(self.get_image_volumes().await);
        }
        self.begin(format!("pulling the image of {name}"));
        let image = self.image(container.into()).await?;
        let attempt = self.attempt_number(container, start.attempt);
        let image = ResolvedImage {
            reference: image.image_ref,
            user: ImageUser::new(image.uid, &image.username),
        };
        let image_volumes = mounted_by(container, sandbox_context.image_volumes.as_ref())?;
        let held = match uses_sub_paths(container) {
            true => self.context.resources.volumes.hold(&self.pod.uid).await,
            false => None,
        };
        let prepared =
            self.configure(container, attempt, &image, image_volumes, sandbox_context).await;
        let (config, sandbox_config) = prepared.map_err(|error| {
            NotStarted::new(StartError::CreateContainerConfigError, chain(&error))
        })?;
        self.context.resources.allocations.note_start(self.pod, container);
        let id = self.create(container, attempt, sandbox, config, sandbox_config).await?;
        self.run(container, attempt, &id).await?;
        drop(held);
        self.post_start(container, &id, sandbox_context).await
    }

    /// Ensures an image is present, unless its pull is in back-off.
    async fn image(&mut self, wanted: ImageRequest<'_>) -> Result<PresentImage, NotStarted> {
        let image = wanted.image;
        let now = self.context.clock.now();
        let held = self.attempts().pull_backoff(image, now).map(|(_, error)| error.to_owned());
        let rank = self.rank(StartStep::PullImage);
        let present = self.context.images.ensure(self.pod, wanted, rank, held.as_deref()).await;
        let mut attempts = self.attempts();
        match present {
            Ok(present) => {
                attempts.note_pulled(image);
                Ok(present)
            }
            Err(ImageUnavailable { reason, message, after_pull }) => {
                if after_pull {
                    attempts.note_pull_failure(image, reason, &message, self.context.clock.now());
                }
                Err(NotStarted { reason, message, image: Some(image.clone()), instance: None })
            }
        }
    }

    /// Pulls the images that the pod mounts as volumes, before the images of containers.
    async fn get_image_volumes(&mut self) -> ImageVolumes {
        let mut found = ImageVolumes::new();
        let pod = self.pod.clone();
        let spec = pod.object.spec.as_ref();
        for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let Some(image) = &volume.image else { continue };
            let user_image = image.reference.clone().unwrap_or_default();
            let policy = PullPolicy::of(image.pull_policy.as_deref());
            self.begin(format!("pulling the image of volume {}", volume.name));
            let wanted =
                ImageRequest { image: &user_image.as_str().into(), policy, container: None };
            let got = self.image(wanted).await.map(|present| {
                let source = VolumeSource::Image { reference: present.image_ref, user_image };
                MountedVolume { source, read_only: true, relabel: false }
            });
            found.insert(volume.name.clone(), got);
        }
        found
    }

    /// The attempt number: one past the newest instance, or past the newest log file.
    fn attempt_number(&self, container: &Container, next: NextAttempt) -> u32 {
        match next {
            NextAttempt::Number(number) => number,
            NextAttempt::PastLogs(least) => {
                let logs = config::log_directory(self.pod, &self.context.facts);
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
        sandbox_context: &SandboxContext,
    ) -> Result<(ContainerConfig, PodSandboxConfig), PrepareError> {
        let (pod, context) = (self.pod, self.context);
        let handler = match self.runtime_class() {
            Some(class) => context.resources.objects.known_runtime_handler(class).await,
            None => Ok(String::new()),
        };
        let provision = self.provision(self.or_sandbox_handler(handler)).await?;
        let facts = &context.facts_now();
        let sandbox = config::sandbox(pod, sandbox_context.attempt, facts, &provision)?;
        let fetched = self.env_sources(env::needs(container)).await;
        let services = match pod.is_static() {
            // A static pod must not wait for an API server that may depend on it.
            true => Some(context.resources.objects.known_services()),
            false => context.resources.objects.services().await,
        };
        let environment = Environment::build(&EnvInputs {
            pod,
            container,
            pod_ips: &sandbox_context.ips,
            facts,
            services: services.as_ref().map(|services| services.as_slice()),
            sources: &fetched,
            granted: &[],
        })?;
        let mut volumes = context.resources.volumes.mounted(&pod.uid);
        volumes.extend(image_volumes);
        let handler = &provision.runtime_handler;
        let mounts = mount_plan::requests(pod, container, &environment, &volumes, facts, handler)?;
        let sub_paths = self.bind_sub_paths(container, &mounts).await?;
        let (etc_hosts, termination_log) = self.write_files(container, sandbox_context)?;
        let logs = format!("{}/{}", config::log_directory(pod, facts), container.name);
        make_log_directory(&logs)
            .map_err(|source| PrepareError::Logs { path: logs.clone(), source })?;
        let target = container.target.as_ref().and_then(|name| self.view.newest(name));
        let config = config::container(&ContainerInputs {
            pod,
            container,
            attempt,
            facts,
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

    async fn env_sources(&self, needs: Vec<env::EnvDependency>) -> Fetched {
        let files: Vec<(String, String)> = needs
            .iter()
            .filter_map(|need| match need {
                env::EnvDependency::File { volume, path } => Some((volume.clone(), path.clone())),
                env::EnvDependency::Object { .. } => None,
            })
            .collect();
        let mut fetched = self.context.resources.objects.fetch(self.pod, needs).await;
        for (volume, path) in files {
            let read = self.context.resources.volumes.env_file(&self.pod.uid, &volume, &path).await;
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
            let target = format!("{}/{}/{}", mount.volume, container.name, mount.index);
            let uid = &self.pod.uid;
            let propagation = match mount.propagation {
                MountPropagation::PropagationBidirectional => Propagation::Both,
                MountPropagation::PropagationPrivate
                | MountPropagation::PropagationHostToContainer => Propagation::FromSource,
            };
            let volumes = &self.context.resources.volumes;
            let made = volumes.bind_sub_path(uid, volume_path, sub_path, &target, propagation);
            let path = made.await.map_err(|error| {
                // Paths of the node go to the log only, not to the user.
                tracing::warn!(
                    error = chain(&error),
                    volume = mount.volume,
                    "prepare subPath failed"
                );
                let (volume, container) = (mount.volume.clone(), container.name.to_string());
                match error {
                    SubPathError::Create(_) => ConfigError::SubPathNotCreated { volume, container },
                    SubPathError::File(_) | SubPathError::Mount(_) | SubPathError::Interrupted => {
                        ConfigError::SubPathNotPrepared { volume, container }
                    }
                }
            })?;
            bound.insert(mount.index, path.to_string_lossy().into_owned());
        }
        Ok(bound)
    }

    /// Writes `/etc/hosts` and the termination message file.
    fn write_files(
        &self,
        container: &Container,
        sandbox_context: &SandboxContext,
    ) -> Result<(Option<String>, Option<String>), PrepareError> {
        let (pod, context) = (self.pod, self.context);
        let pod_dir = context.resources.volumes.open_pod_dir(&pod.uid)?;
        let mut etc_hosts = None;
        if mount_plan::needs_etc_hosts(pod, container, &sandbox_context.ips) {
            let names = HostNames::of(pod, &context.facts)?;
            let own = match pod.host_network {
                true => match std::fs::read("/etc/hosts") {
                    Ok(content) => content,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                    Err(source) => return Err(PrepareError::Hosts(source)),
                },
                false => Vec::new(),
            };
            let content = config::hosts::etc_hosts(pod, &sandbox_context.ips, &names, &own);
            // Not replaced: running containers have this file mounted and share it.
            pod_dir.write_in_place("etc-hosts", &content, 0o644)?;
            etc_hosts = Some(pod_dir.path().join("etc-hosts").to_string_lossy().into_owned());
        }
        let mut termination_log = None;
        if mount_plan::termination_message_path(container).is_some() {
            let container_dir = Path::new("containers").join(&*container.name);
            pod_dir.create_dir_all(&container_dir, 0o750)?;
            let now = context.clock.now();
            let file =
                container_dir.join(format!("{:08x}", fresh_number(now.wall.as_nanosecond())));
            pod_dir.write_atomic(&file, b"", 0o666, Durability::Cache)?;
            termination_log = Some(pod_dir.path().join(file).to_string_lossy().into_owned());
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
        let (runtime, sandbox) = (self.context.runtime.clone(), sandbox.clone());
        let permit = self.context.starts.acquire(self.rank(StartStep::CreateContainer)).await;
        let create =
            async move { runtime.create_container(&sandbox, config, sandbox_config).await };
        let created = self.call_tracker.run(permit.during(create)).await;
        match created {
            Ok(id) => {
                let text = "Container created".into();
                self.context.reporting.events.container(
                    self.pod,
                    container,
                    Severity::Normal,
                    "Created",
                    text,
                );
                Ok(id)
            }
            Err(error) => {
                // The container may exist; the next attempt must not reuse its name.
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
        let (runtime, made) = (self.context.runtime.clone(), id.clone());
        let permit = self.context.starts.acquire(self.rank(StartStep::StartContainer)).await;
        let start = async move { runtime.start_container(&made).await };
        let started = self.call_tracker.run(permit.during(start)).await;
        if let Err(error) = started {
            let failed = NotStarted::new(StartError::RunContainerError, error.message);
            return Err(NotStarted { instance: Some(id.clone()), ..failed });
        }
        let text = "Container started".into();
        self.context.reporting.events.container(
            self.pod,
            container,
            Severity::Normal,
            "Started",
            text,
        );
        self.note(&format!("{} started", container.name));
        self.link_log(container, attempt, id);
        Ok(())
    }

    /// The link by which log collectors find a container's log.
    fn link_log(&self, container: &Container, attempt: u32, id: &ContainerId) {
        let logs = config::log_directory(self.pod, &self.context.facts);
        let log = Path::new(&logs).join(config::log_path(&container.name, attempt));
        if !log.exists() {
            return;
        }
        let file = link_name(self.pod, &container.name, id);
        let link = self.context.settings.log_links_dir.join(file);
        if let Err(error) = change::symlink(&log, &link) {
            tracing::debug!(%error, link = %link.display(), "link container log failed");
        }
    }

    async fn post_start(
        &mut self,
        container: &Container,
        id: &ContainerId,
        sandbox_context: &SandboxContext,
    ) -> Result<(), NotStarted> {
        let Some(handler) = container.post_start() else { return Ok(()) };
        self.begin(format!("running the postStart hook of {}", container.name));
        let pod_ip =
            sandbox_context.ips.first().copied().or_else(|| stop::pod_ip(self.pod, self.view));
        let target = hooks::HookTarget { pod: self.pod, container, instance: id, pod_ip };
        let Err(error) = hooks::run(self.context, &target, handler).await else { return Ok(()) };
        let text = "PostStartHook failed".into();
        let reason = "FailedPostStartHook";
        self.context.reporting.events.container(
            self.pod,
            container,
            Severity::Warning,
            reason,
            text,
        );
        self.stop_after_hook(container, id.clone()).await;
        Err(NotStarted::new(StartError::PostStartHookError, error.to_string()))
    }
}

fn make_log_directory(path: &str) -> std::io::Result<()> {
    change::make_directories(Path::new(path), 0o755)
}

/// One more than the largest N among `N.log` and its rotated files.
fn past_logs(directory: &Path) -> u32 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let number = |name: std::ffi::OsString| {
        let name = name.into_string().ok()?;
        let (number, rest) = name.split_once('.')?;
        rest.starts_with("log").then(|| number.parse::<u32>().ok())?
    };
    let largest = entries.flatten().filter_map(|entry| number(entry.file_name())).max();
    largest.map_or(0, |number| number.saturating_add(1))
}

/// A number that differs between starts, for file names.
fn fresh_number(nanos: i128) -> u32 {
    let bytes = nanos.to_le_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_number_follows_the_newest_log() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(past_logs(directory.path()), 0);
        for name in ["0.log", "3.log.20260101-000000.gz", "2.log", "notes.txt", "9.txt"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(past_logs(directory.path()), 4);
    }
}
