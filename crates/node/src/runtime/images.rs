//! Image manager: checks whether an image is present and usable by a pod, and pulls it if not.
//!
//! Pulls run in parallel up to a limit, in the order of starts
//! ([`start_order`](podwright_core::start_order)). The same image needed by several pods at once is
//! pulled once. A pull is cancelled when its last waiter is dropped, or at its deadline.

mod accounts;
mod credentials;
mod plugins;
mod pull_queue;
mod pulls;
mod records;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_api::image_name;
use podwright_core::attempts::StartError;
use podwright_core::credential::Provider;
use podwright_core::image::access::{self, ImageAccessDecision, Verification};
use podwright_core::plan;
use podwright_core::pod::{Container, Pod};
use podwright_core::start_order::Rank;
use podwright_core::throttle::Throttle;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use podwright_host::threads;

pub use accounts::ApiAccounts;
pub use credentials::Secrets;
pub use plugins::Accounts;

use crate::error_chain::chain;
use crate::report::events::{Recorder, Severity};
use crate::telemetry::metrics::Metrics;
use credentials::{Credentials, Gathered, NodeFiles, pass};
use plugins::Plugins;
use pull_queue::PullQueue;
use pulls::{Pull, Pulls};
use records::Records;

/// Configuration of the image manager.
#[derive(Clone, Debug, Default)]
pub struct ImageSettings {
    /// Maximum number of parallel pulls.
    pub parallel: usize,
    /// `registryPullQPS` and `registryBurst`; zero is unlimited.
    pub per_second: u32,
    pub burst: u32,
    pub verification: Verification,
    /// Directories that may hold a Docker configuration of the node.
    pub docker_configs: Vec<PathBuf>,
    pub plugins: Vec<Provider>,
    pub plugins_dir: PathBuf,
}

/// Dependencies of the image manager.
pub struct ImageDependencies {
    pub runtime: cri::Client,
    pub clock: Clock,
    pub events: Recorder,
    pub metrics: Arc<Metrics>,
    pub secrets: Arc<dyn Secrets>,
    pub accounts: Arc<dyn Accounts>,
}

/// An image that is present in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentImage {
    /// The runtime's reference of the image.
    pub image_ref: String,
    pub uid: Option<i64>,
    pub username: String,
}

/// Reason that a container has no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUnavailable {
    pub reason: StartError,
    pub message: String,
    /// The attempt included a pull: the next attempt is another request to the registry and waits
    /// for the pull back-off.
    pub after_pull: bool,
}

impl ImageUnavailable {
    /// No pull succeeded; the reason implies whether one was tried.
    fn new(reason: StartError, message: String) -> Self {
        Self { reason, message, after_pull: reason.is_failed_pull() }
    }
}

pub struct Images {
    runtime: cri::Client,
    clock: Clock,
    events: Recorder,
    metrics: Arc<Metrics>,
    credentials: Credentials,
    pulls: Pulls,
    verification: Verification,
    records: Option<Arc<Records>>,
}

/// A pull without a waiter. Dropping it cancels the pull, unless another waiter has joined. Until
/// then a waiter that joins gets the result, even if the pull is complete.
pub struct Prefetch {
    task: tokio::task::AbortHandle,
    _outcome: Arc<Mutex<Option<Pull>>>,
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An image that a pod needs.
#[derive(Clone, Copy)]
pub struct ImageRequest<'a> {
    pub image: &'a Arc<str>,
    pub policy: PullPolicy,
    /// The container that runs it, for events. `None`: it is an image volume of the pod.
    pub container: Option<&'a Container>,
}

impl<'a> From<&'a Container> for ImageRequest<'a> {
    fn from(container: &'a Container) -> Self {
        let policy = PullPolicy::of(container.spec.image_pull_policy.as_deref());
        Self { image: &container.image, policy, container: Some(container) }
    }
}

#[derive(Clone, Copy)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub fn of(written: Option<&str>) -> Self {
        match written {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some(_) | None => Self::IfNotPresent,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "ifnotpresent",
            Self::Never => "never",
        }
    }
}

impl Images {
    /// Opens the records of earlier pulls, unless verification is off.
    pub fn new(
        root_dir: &Path,
        settings: ImageSettings,
        dependencies: ImageDependencies,
    ) -> Result<Arc<Self>, FileError> {
        let ImageDependencies { runtime, clock, events, metrics, secrets, accounts } = dependencies;
        let records = match settings.verification {
            Verification::Off => None,
            _ => Some(Arc::new(Records::open(root_dir)?)),
        };
        let now = clock.now().mono;
        let throttle = Throttle::new(settings.per_second, settings.burst, now);
        let plugins = Plugins::new(
            settings.plugins,
            settings.plugins_dir,
            accounts,
            clock.clone(),
            metrics.clone(),
        );
        Ok(Arc::new(Self {
            credentials: Credentials {
                secrets,
                node: NodeFiles::new(settings.docker_configs, clock.clone()),
                plugins,
            },
            pulls: Pulls {
                runtime: runtime.clone(),
                clock: clock.clone(),
                queue: PullQueue::new(settings.parallel),
                throttle: Arc::new(Mutex::new(throttle)),
                records: records.clone(),
                in_progress: Mutex::default(),
            },
            runtime,
            clock,
            events,
            metrics,
            verification: settings.verification,
            records,
        }))
    }

    /// Records the result of pulls that a crash interrupted. Called once, before the first pod.
    pub async fn settle(&self) {
        let Some(records) = &self.records else { return };
        for intent in records.left_intents() {
            match self.runtime.image_status(&intent.image).await {
                Ok(image) => {
                    let image_ref = image.map(|image| image.id);
                    records.close(&intent, image_ref.as_deref(), self.clock.now());
                }
                Err(error) => {
                    tracing::warn!(
                        %error, image = intent.image,
                        "cannot check an interrupted pull, image stays unverified"
                    );
                    records.hold(&intent);
                }
            }
        }
    }

    /// Removes the pull records of images that are gone.
    pub(crate) fn forget_all_but(&self, image_refs: &[&str]) {
        if let Some(records) = &self.records {
            records.forget_all_but(image_refs);
        }
    }

    /// Starts the pull of a container's image early, while the sandbox is being created.
    pub fn prefetch(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        container: &Container,
        rank: Rank,
    ) -> Option<Prefetch> {
        let image = image_name::with_default_tag(&container.image).ok()?;
        let policy = ImageRequest::from(container).policy;
        let (this, pod) = (self.clone(), pod.clone());
        let outcome: Arc<Mutex<Option<Pull>>> = Arc::default();
        let kept = outcome.clone();
        let task = tokio::spawn(async move {
            let missing = match policy {
                PullPolicy::Never => false,
                PullPolicy::Always => true,
                PullPolicy::IfNotPresent => {
                    matches!(this.runtime.image_status(&image).await, Ok(None))
                }
            };
            // Errors of its secrets are reported when the container starts.
            if missing && let Ok(gathered) = this.gather(&pod, &image).await {
                let pull = this.pulls.join(&image, gathered.credentials, rank);
                *kept.lock() = Some(pull.clone());
                if let Err(error) = pull.await {
                    tracing::debug!(pod = %pod.name, image, error, "prefetch failed");
                }
            }
        });
        Some(Prefetch { task: task.abort_handle(), _outcome: outcome })
    }

    /// Makes sure that an image is present, by its pull policy. `rank` is the order of its pull among
    /// others; `held` is the error of the last pull while its back-off has not expired.
    pub async fn ensure(
        &self,
        pod: &Pod,
        request: ImageRequest<'_>,
        rank: Rank,
        held: Option<&str>,
    ) -> Result<PresentImage, ImageUnavailable> {
        let wanted = &**request.image;
        let emit_event =
            |severity, reason, text: String| self.emit_event(pod, request, severity, reason, text);
        let image = image_name::with_default_tag(wanted).map_err(|error| {
            let message = format!("Failed to apply default image tag {wanted:?}: {error}");
            emit_event(Severity::Warning, "InspectFailed", message.clone());
            ImageUnavailable::new(StartError::InvalidImageName, message)
        })?;
        let policy = request.policy;
        let here = self.runtime.image_status(&image).await;
        let here = here.map_err(|error| self.not_inspected(pod, request, &error.rpc_text()))?;
        let present = here.is_some();
        let usable = match (policy, here) {
            (PullPolicy::Always, _) | (_, None) => None,
            (PullPolicy::IfNotPresent, Some(_)) if self.is_prefetched(pod, &image).await? => None,
            (PullPolicy::IfNotPresent | PullPolicy::Never, Some(here)) => {
                self.may_use(pod, &image, &here.id).await?.then_some(here)
            }
        };
        let pull = usable.is_none() && !matches!(policy, PullPolicy::Never);
        self.metrics.images.ensured(policy.as_str(), present, pull);
        match (policy, usable) {
            (_, Some(image)) => {
                let suffix = match self.verification {
                    Verification::Off => "",
                    _ => " and can be accessed by the pod",
                };
                let text = format!("Container image {wanted:?} already present on machine{suffix}");
                emit_event(Severity::Normal, "Pulled", text);
                Ok(present_image(image))
            }
            (PullPolicy::Never, None) => {
                let message =
                    format!("Container image {wanted:?} is not present with pull policy of Never");
                emit_event(Severity::Warning, "ErrImageNeverPull", message.clone());
                Err(ImageUnavailable::new(StartError::ErrImageNeverPull, message))
            }
            (PullPolicy::Always | PullPolicy::IfNotPresent, None) => match held {
                Some(error) => {
                    let message = plan::image_back_off(wanted, error);
                    Err(ImageUnavailable::new(StartError::ImagePullBackOff, message))
                }
                None => self.pull(pod, request, &image, rank).await,
            },
        }
    }

    /// Whether the image was just pulled for this pod or with the same credentials. Then the events
    /// report a pull, not an image that was already present.
    async fn is_prefetched(&self, pod: &Pod, image: &str) -> Result<bool, ImageUnavailable> {
        if !self.pulls.is_pulling(image) {
            return Ok(false);
        }
        let credentials = self.gather(pod, image).await?.credentials;
        Ok(self.pulls.find(image, &credentials).is_some())
    }

    /// Whether a pod may use an image that is present. Its secrets are read only if they matter.
    async fn may_use(
        &self,
        pod: &Pod,
        image: &str,
        image_ref: &str,
    ) -> Result<bool, ImageUnavailable> {
        let Some(records) = &self.records else { return Ok(true) };
        // Without a valid name no access can be proven.
        let Ok(repository) = image_name::repository(image) else { return Ok(false) };
        let known = records.known(image, image_ref);
        let verdict = match access::decide_by_policy(&self.verification, &repository, &known) {
            Some(verdict) => verdict,
            None => {
                let passes: Vec<_> =
                    self.gather(pod, image).await?.credentials.iter().map(pass).collect();
                let now = self.clock.now().wall;
                access::check(&self.verification, &repository, &known, &passes, now)
            }
        };
        self.metrics.images.checked(verdict.as_str());
        if let ImageAccessDecision::Recorded(Some(record)) = &verdict {
            threads::in_place(|| records.keep(record));
        }
        Ok(verdict.is_allowed())
    }

    async fn gather(&self, pod: &Pod, image: &str) -> Result<Gathered, ImageUnavailable> {
        let repository = image_name::repository(image).unwrap_or_default();
        self.credentials
            .gather(pod, &repository)
            .await
            .map_err(|error| ImageUnavailable::new(StartError::ErrImagePull, chain(&error)))
    }

    fn emit_event(
        &self,
        pod: &Pod,
        request: ImageRequest<'_>,
        severity: Severity,
        reason: &'static str,
        text: String,
    ) {
        match request.container {
            Some(container) => self.events.container(pod, container, severity, reason, text),
            None => self.events.pod(pod, severity, reason, text),
        }
    }

    async fn pull(
        &self,
        pod: &Pod,
        request: ImageRequest<'_>,
        image: &str,
        rank: Rank,
    ) -> Result<PresentImage, ImageUnavailable> {
        let wanted = &**request.image;
        let emit_event =
            |severity, reason, text: String| self.emit_event(pod, request, severity, reason, text);
        let failed = |error: &str| {
            let text = format!("Failed to pull image {wanted:?}: {error}");
            emit_event(Severity::Warning, "Failed", text);
        };
        let gathered = self.gather(pod, image).await;
        let gathered = gathered.inspect_err(|absent| failed(&absent.message))?;
        if !gathered.missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image \
                 may not succeed.",
                gathered.missing.join(", ")
            );
            self.events.pod(pod, Severity::Warning, "FailedToRetrieveImagePullSecret", text);
        }
        emit_event(Severity::Normal, "Pulling", format!("Pulling image {wanted:?}"));
        let pulled = self.pulls.join(image, gathered.credentials, rank).await;
        let pulled = pulled.inspect_err(|error| failed(error));
        let pulled = pulled.map_err(|error| pull_failure(wanted, error))?;
        let got = self.runtime.image_status(&pulled.image_ref).await;
        let size = got.as_ref().ok().and_then(|image| image.as_ref().map(|image| image.size));
        self.metrics.images.pulled(size, pulled.took);
        // The user of the image must be known: ignoring the error would run the container as root.
        let not_inspected = |why: &str| ImageUnavailable {
            after_pull: true,
            ..self.not_inspected(pod, request, why)
        };
        let got = match got {
            Ok(Some(image)) => image,
            Ok(None) => {
                let why = format!("the runtime has no image {:?} after the pull", pulled.image_ref);
                return Err(not_inspected(&why));
            }
            Err(error) => return Err(not_inspected(&error.rpc_text())),
        };
        let text = format!(
            "Successfully pulled image {wanted:?} in {} ({} including waiting). Image size: {} bytes.",
            go_duration(pulled.took),
            go_duration(pulled.waited),
            got.size,
        );
        emit_event(Severity::Normal, "Pulled", text);
        Ok(present_image(got))
    }

    /// Reports that the runtime cannot inspect an image.
    fn not_inspected(&self, pod: &Pod, request: ImageRequest<'_>, why: &str) -> ImageUnavailable {
        let message = format!("Failed to inspect image {:?}: {why}", &**request.image);
        self.emit_event(pod, request, Severity::Warning, "InspectFailed", message.clone());
        ImageUnavailable::new(StartError::ImageInspectError, message)
    }
}

/// The start error of a failed pull. Runtimes prefix the message with a reason for some errors.
fn pull_failure(image: &str, error: String) -> ImageUnavailable {
    let known = [
        (StartError::RegistryUnavailable, "the registry is unavailable"),
        (StartError::SignatureValidationFailed, "the signature validation failed"),
    ];
    for (reason, words) in known {
        if let Some(rest) = error.strip_prefix(reason.as_str()) {
            let message = format!("image pull failed for {image} because {words}{rest}");
            return ImageUnavailable::new(reason, message);
        }
    }
    ImageUnavailable::new(StartError::ErrImagePull, error)
}

fn present_image(image: cri::Image) -> PresentImage {
    PresentImage { image_ref: image.id, uid: image.uid, username: image.username }
}

/// A duration in Go's format, to the millisecond.
fn go_duration(duration: Duration) -> String {
    match duration.as_millis() {
        millis if millis < 1000 => format!("{millis}ms"),
        millis => format!("{}.{:03}s", millis / 1000, millis % 1000),
    }
}

#[cfg(test)]
mod tests;
