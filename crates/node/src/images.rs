//! Images: whether one is here, whether the pod may have it, and getting it if not.
//!
//! Pulls run in parallel up to a limit, and the same image wanted by many pods at once is pulled
//! once. A pull belongs to whoever waits for it: when the last one gives up, it ends.

mod accounts;
mod credentials;
mod plugins;
mod pulls;
mod records;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::attempts::StartError;
use podwright_core::credential::Provider;
use podwright_core::image::access::{self, Verdict, Verification};
use podwright_core::image::{self, Throttle};
use podwright_core::plan;
use podwright_core::pod::{Container, Pod};
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use tokio::sync::Semaphore;

pub use accounts::ApiAccounts;
pub use credentials::Secrets;
pub use plugins::Accounts;

use crate::causes::chain;
use crate::events::{Recorder, Severity};
use crate::metrics::Metrics;
use credentials::{Credentials, Gathered, NodeFiles, pass};
use plugins::Plugins;
use pulls::{Pull, Pulls};
use records::Records;

/// How images are got.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Pulls at a time.
    pub parallel: usize,
    /// `registryPullQPS` and `registryBurst`; zero a second is no limit.
    pub per_second: u32,
    pub burst: u32,
    pub verification: Verification,
    /// Folders that may hold a Docker configuration of the node.
    pub docker_configs: Vec<PathBuf>,
    pub plugins: Vec<Provider>,
    pub plugins_dir: PathBuf,
}

/// What images are got with.
pub struct Means {
    pub runtime: cri::Client,
    pub clock: Clock,
    pub events: Recorder,
    pub metrics: Arc<Metrics>,
    pub secrets: Arc<dyn Secrets>,
    pub accounts: Arc<dyn Accounts>,
}

/// An image the runtime has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// How the runtime calls it.
    pub image_ref: String,
    pub uid: Option<i64>,
    pub username: String,
}

/// Why a container has no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    pub reason: StartError,
    pub message: String,
    /// A pull was part of the attempt: the next attempt is one more request to the registry, and
    /// waits for the back-off of pulls.
    pub after_pull: bool,
}

impl Absent {
    /// No pull succeeded; whether one was tried is in the reason.
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

/// A pull nobody waits for yet. Dropped, it ends, unless somebody joined it meanwhile; until then
/// who joins gets its outcome, even if it is over.
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
pub struct Wanted<'a> {
    pub image: &'a Arc<str>,
    pub policy: PullPolicy,
    /// The container that is to run it: events point there. `None`: it is a volume of the pod.
    pub container: Option<&'a Container>,
}

impl<'a> From<&'a Container> for Wanted<'a> {
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
    /// Opens the records of earlier pulls, unless nothing is checked.
    pub fn new(root_dir: &Path, settings: Settings, means: Means) -> Result<Arc<Self>, FileError> {
        let Means { runtime, clock, events, metrics, secrets, accounts } = means;
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
                places: Arc::new(Semaphore::new(settings.parallel.max(1))),
                throttle: Arc::new(Mutex::new(throttle)),
                records: records.clone(),
                under_way: Mutex::default(),
            },
            runtime,
            clock,
            events,
            metrics,
            verification: settings.verification,
            records,
        }))
    }

    /// Closes what pulls brought that a crash cut short. Once, before the first pod.
    pub async fn settle(&self) {
        let Some(records) = &self.records else { return };
        for intent in records.left_intents() {
            match self.runtime.image_status(&intent.image).await {
                Ok(image) => {
                    let image_ref = image.map(|image| image.id);
                    records.close(&intent, image_ref.as_deref(), self.clock.now());
                }
                Err(error) => {
                    tracing::warn!(%error, image = intent.image, "was it pulled or not?");
                    records.hold(&intent);
                }
            }
        }
    }

    /// Images that are gone need no record of who may use them.
    pub(crate) fn forget_all_but(&self, image_refs: &[&str]) {
        if let Some(records) = &self.records {
            records.forget_all_but(image_refs);
        }
    }

    /// Begins to pull what a container will need, while something else is still being made.
    pub fn prefetch(self: &Arc<Self>, pod: &Arc<Pod>, container: &Container) -> Option<Prefetch> {
        let image = image::with_default_tag(&container.image).ok()?;
        let policy = Wanted::from(container).policy;
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
            // What is wrong with its secrets is told when the container's turn comes.
            if missing && let Ok(gathered) = this.gather(&pod, &image).await {
                let pull = this.pulls.join(&image, gathered.credentials);
                *kept.lock() = Some(pull.clone());
                if let Err(error) = pull.await {
                    tracing::debug!(pod = %pod.name, image, error, "prefetch failed");
                }
            }
        });
        Some(Prefetch { task: task.abort_handle(), _outcome: outcome })
    }

    /// Makes sure an image is here, as its pull policy says. With the error of its last pull it is
    /// too early for another.
    pub async fn ensure(
        &self,
        pod: &Pod,
        wish: Wanted<'_>,
        held: Option<&str>,
    ) -> Result<Present, Absent> {
        let wanted = &**wish.image;
        let tell = |severity, reason, text: String| self.tell(pod, wish, severity, reason, text);
        let image = image::with_default_tag(wanted).map_err(|error| {
            let message = format!("Failed to apply default image tag {wanted:?}: {error}");
            tell(Severity::Warning, "InspectFailed", message.clone());
            Absent::new(StartError::InvalidImageName, message)
        })?;
        let policy = wish.policy;
        let here = self.runtime.image_status(&image).await;
        let here = here.map_err(|error| self.not_inspected(pod, wish, &error.rpc_text()))?;
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
                let whose = match self.verification {
                    Verification::Off => "",
                    _ => " and can be accessed by the pod",
                };
                let text = format!("Container image {wanted:?} already present on machine{whose}");
                tell(Severity::Normal, "Pulled", text);
                Ok(found(image))
            }
            (PullPolicy::Never, None) => {
                let message =
                    format!("Container image {wanted:?} is not present with pull policy of Never");
                tell(Severity::Warning, "ErrImageNeverPull", message.clone());
                Err(Absent::new(StartError::ErrImageNeverPull, message))
            }
            (PullPolicy::Always | PullPolicy::IfNotPresent, None) => match held {
                Some(error) => {
                    let message = plan::image_back_off(wanted, error);
                    Err(Absent::new(StartError::ImagePullBackOff, message))
                }
                None => self.pull(pod, wish, &image).await,
            },
        }
    }

    /// Whether an image is here because it was just pulled for this pod, or with credentials like
    /// its own. Then the pull is told as what it was.
    async fn is_prefetched(&self, pod: &Pod, image: &str) -> Result<bool, Absent> {
        if !self.pulls.concern(image) {
            return Ok(false);
        }
        let credentials = self.gather(pod, image).await?.credentials;
        Ok(self.pulls.find(image, &credentials).is_some())
    }

    /// Whether a pod may have an image that is here. Its secrets are asked for only if it matters.
    async fn may_use(&self, pod: &Pod, image: &str, image_ref: &str) -> Result<bool, Absent> {
        let Some(records) = &self.records else { return Ok(true) };
        // For what cannot be named no access can be shown.
        let Ok(repository) = image::repository(image) else { return Ok(false) };
        let known = records.known(image, image_ref);
        let verdict = match access::without_asking(&self.verification, &repository, &known) {
            Some(verdict) => verdict,
            None => {
                let passes: Vec<_> =
                    self.gather(pod, image).await?.credentials.iter().map(pass).collect();
                let now = self.clock.now().wall;
                access::check(&self.verification, &repository, &known, &passes, now)
            }
        };
        self.metrics.images.checked(verdict.as_str());
        if let Verdict::Recorded(Some(record)) = &verdict {
            records.keep(record);
        }
        Ok(verdict.is_allowed())
    }

    async fn gather(&self, pod: &Pod, image: &str) -> Result<Gathered, Absent> {
        let repository = image::repository(image).unwrap_or_default();
        self.credentials
            .gather(pod, &repository)
            .await
            .map_err(|error| Absent::new(StartError::ErrImagePull, chain(&error)))
    }

    fn tell(
        &self,
        pod: &Pod,
        wish: Wanted<'_>,
        severity: Severity,
        reason: &'static str,
        text: String,
    ) {
        match wish.container {
            Some(container) => self.events.container(pod, container, severity, reason, text),
            None => self.events.pod(pod, severity, reason, text),
        }
    }

    async fn pull(&self, pod: &Pod, wish: Wanted<'_>, image: &str) -> Result<Present, Absent> {
        let wanted = &**wish.image;
        let tell = |severity, reason, text: String| self.tell(pod, wish, severity, reason, text);
        let failed = |error: &str| {
            let text = format!("Failed to pull image {wanted:?}: {error}");
            tell(Severity::Warning, "Failed", text);
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
        tell(Severity::Normal, "Pulling", format!("Pulling image {wanted:?}"));
        let pulled = self.pulls.join(image, gathered.credentials).await;
        let pulled = pulled.inspect_err(|error| failed(error));
        let pulled = pulled.map_err(|error| refusal(wanted, error))?;
        let got = self.runtime.image_status(&pulled.image_ref).await;
        let size = got.as_ref().ok().and_then(|image| image.as_ref().map(|image| image.size));
        self.metrics.images.pulled(size, pulled.took);
        // Whom the image runs as must be known: to take an error for "nobody" would mean root.
        let not_inspected =
            |why: &str| Absent { after_pull: true, ..self.not_inspected(pod, wish, why) };
        let got = match got {
            Ok(Some(image)) => image,
            Ok(None) => {
                let why = format!("the runtime pulled it and has no image {:?}", pulled.image_ref);
                return Err(not_inspected(&why));
            }
            Err(error) => return Err(not_inspected(&error.rpc_text())),
        };
        let text = format!(
            "Successfully pulled image {wanted:?} in {} ({} including waiting). Image size: {} bytes.",
            shown(pulled.took),
            shown(pulled.waited),
            got.size,
        );
        tell(Severity::Normal, "Pulled", text);
        Ok(found(got))
    }

    /// The runtime does not say what an image is like.
    fn not_inspected(&self, pod: &Pod, wish: Wanted<'_>, why: &str) -> Absent {
        let message = format!("Failed to inspect image {:?}: {why}", &**wish.image);
        self.tell(pod, wish, Severity::Warning, "InspectFailed", message.clone());
        Absent::new(StartError::ImageInspectError, message)
    }
}

/// What a failed pull means. Runtimes begin their message with a word for what users can mend.
fn refusal(image: &str, error: String) -> Absent {
    let known = [
        (StartError::RegistryUnavailable, "the registry is unavailable"),
        (StartError::SignatureValidationFailed, "the signature validation failed"),
    ];
    for (reason, words) in known {
        if let Some(rest) = error.strip_prefix(reason.as_str()) {
            let message = format!("image pull failed for {image} because {words}{rest}");
            return Absent::new(reason, message);
        }
    }
    Absent::new(StartError::ErrImagePull, error)
}

fn found(image: cri::Image) -> Present {
    Present { image_ref: image.id, uid: image.uid, username: image.username }
}

/// A duration as Go prints it, to the millisecond.
fn shown(duration: Duration) -> String {
    match duration.as_millis() {
        millis if millis < 1000 => format!("{millis}ms"),
        millis => format!("{}.{:03}s", millis / 1000, millis % 1000),
    }
}

#[cfg(test)]
mod tests;
