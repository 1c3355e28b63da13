//! Images: whether one is here, and getting it if not.
//!
//! Pulls run in parallel up to a limit, and the same image wanted by many pods at once is pulled
//! once. A pull belongs to whoever waits for it: when the last one gives up, it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use podwright_core::attempts::StartError;
use podwright_core::image;
use podwright_core::pod::{Container, Pod};
use podwright_cri as cri;
use podwright_proto::cri::ImageSpec;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::events::{Recorder, Severity};

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
}

/// A pull that several may wait for.
type Pull = BoxFuture<'static, Result<Pulled, String>>;

#[derive(Clone, Debug)]
struct Pulled {
    image_ref: String,
    took: Duration,
    waited: Duration,
}

pub struct Images {
    runtime: cri::Client,
    events: Recorder,
    places: Arc<Semaphore>,
    pulls: Arc<Mutex<HashMap<String, WeakShared<Pull>>>>,
}

/// A pull nobody waits for yet. Dropped, it ends, unless somebody joined it meanwhile.
pub struct Prefetch(tokio::task::AbortHandle);

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    fn of(container: &Container) -> Self {
        match container.spec.image_pull_policy.as_deref() {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some(_) | None => Self::IfNotPresent,
        }
    }
}

impl Images {
    pub fn new(runtime: cri::Client, events: Recorder, parallel: usize) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            events,
            places: Arc::new(Semaphore::new(parallel.max(1))),
            pulls: Arc::default(),
        })
    }

    /// Begins to pull what a container will need, while something else is still being made.
    pub fn prefetch(self: &Arc<Self>, pod: &Pod, container: &Container) -> Option<Prefetch> {
        let image = image::with_default_tag(&container.image).ok()?;
        let policy = PullPolicy::of(container);
        let (this, name) = (self.clone(), pod.name.clone());
        let task = tokio::spawn(async move {
            let missing = match policy {
                PullPolicy::Never => false,
                PullPolicy::Always => true,
                PullPolicy::IfNotPresent => {
                    matches!(this.runtime.image_status(&image).await, Ok(None))
                }
            };
            if missing && let Err(error) = this.pull(&image).await {
                tracing::debug!(pod = %name, image, error, "prefetch failed");
            }
        });
        Some(Prefetch(task.abort_handle()))
    }

    /// Makes sure the image of a container is here, as its pull policy says.
    pub async fn ensure(&self, pod: &Pod, container: &Container) -> Result<Present, Absent> {
        let wanted = &*container.image;
        let tell = |severity, reason, text: String| {
            self.events.container(pod, container, severity, reason, text);
        };
        let image = image::with_default_tag(wanted).map_err(|error| {
            let message = format!("Failed to apply default image tag {wanted:?}: {error}");
            tell(Severity::Warning, "InspectFailed", message.clone());
            Absent { reason: StartError::InvalidImageName, message }
        })?;
        let policy = PullPolicy::of(container);
        let here = self.runtime.image_status(&image).await.map_err(|error| {
            let message = format!("Failed to inspect image {wanted:?}: {}", error.rpc_text());
            tell(Severity::Warning, "InspectFailed", message.clone());
            Absent { reason: StartError::ImageInspectError, message }
        })?;
        match (policy, here) {
            (PullPolicy::IfNotPresent | PullPolicy::Never, Some(image)) => {
                let text = format!(
                    "Container image {wanted:?} already present on machine and can be accessed by the pod"
                );
                tell(Severity::Normal, "Pulled", text);
                Ok(present(image))
            }
            (PullPolicy::Never, None) => {
                let message =
                    format!("Container image {wanted:?} is not present with pull policy of Never");
                tell(Severity::Warning, "ErrImageNeverPull", message.clone());
                Err(Absent { reason: StartError::ErrImageNeverPull, message })
            }
            (PullPolicy::IfNotPresent, None) | (PullPolicy::Always, _) => {
                tell(Severity::Normal, "Pulling", format!("Pulling image {wanted:?}"));
                let pulled = self.pull(&image).await.map_err(|error| {
                    let text = format!("Failed to pull image {wanted:?}: {error}");
                    tell(Severity::Warning, "Failed", text);
                    Absent { reason: StartError::ErrImagePull, message: error }
                })?;
                let got = self.runtime.image_status(&pulled.image_ref).await.ok().flatten();
                let size = got.as_ref().map_or(0, |image| image.size);
                let text = format!(
                    "Successfully pulled image {wanted:?} in {} ({} including waiting). Image size: {size} bytes.",
                    shown(pulled.took),
                    shown(pulled.waited),
                );
                tell(Severity::Normal, "Pulled", text);
                Ok(got.map_or(
                    Present { image_ref: pulled.image_ref, uid: None, username: String::new() },
                    present,
                ))
            }
        }
    }

    /// Joins the pull of this image if one is under way, else begins it.
    async fn pull(&self, image: &str) -> Result<Pulled, String> {
        let pull = {
            let mut pulls = self.pulls.lock();
            pulls.retain(|_, pull| pull.upgrade().is_some());
            match pulls.get(image).and_then(WeakShared::upgrade) {
                Some(pull) => pull,
                None => {
                    let pull = self.begin(image.to_owned());
                    if let Some(weak) = pull.downgrade() {
                        pulls.insert(image.to_owned(), weak);
                    }
                    pull
                }
            }
        };
        pull.await
    }

    fn begin(&self, image: String) -> Shared<Pull> {
        let (runtime, places) = (self.runtime.clone(), self.places.clone());
        let pull = async move {
            let asked = Instant::now();
            let _place = places.acquire_owned().await.map_err(|closed| closed.to_string())?;
            let began = Instant::now();
            let spec = ImageSpec { image, ..ImageSpec::default() };
            let result = runtime.pull_image(spec, None, None).await;
            let pulled = result.map_err(|error| error.message)?;
            Ok(Pulled {
                image_ref: pulled.image_ref,
                took: began.elapsed(),
                waited: asked.elapsed(),
            })
        };
        pull.boxed().shared()
    }
}

fn present(image: cri::Image) -> Present {
    Present { image_ref: image.id, uid: image.uid, username: image.username }
}

/// A duration as Go prints it, to the millisecond.
fn shown(duration: Duration) -> String {
    match duration.as_millis() {
        millis if millis < 1000 => format!("{millis}ms"),
        millis => format!("{}.{:03}s", millis / 1000, millis % 1000),
    }
}
