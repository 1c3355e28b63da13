//! Pulls in progress.
//!
//! The same image with the same credentials, needed by several pods at once, is pulled once. With
//! different credentials it is pulled separately, because the result proves access only for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use podwright_core::credential::{Credential, Login};
use podwright_core::image::access::PullCredential;
use podwright_core::image::{PULL_DEADLINE, pull_deadline_exceeded};
use podwright_core::start_order::Rank;
use podwright_core::throttle::Throttle;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use podwright_host::threads;
use podwright_proto::cri::{AuthConfig, ImageSpec};
use tokio::time::Instant;

use super::credentials::pass;
use super::pull_queue::{PullPlace, PullQueue, QueuedPull};
use super::records::Records;

/// A pull with any number of waiters.
pub(super) type Pull = Shared<BoxFuture<'static, Result<Pulled, String>>>;

#[derive(Clone, Debug)]
pub(super) struct Pulled {
    pub(super) image_ref: String,
    pub(super) took: Duration,
    pub(super) waited: Duration,
}

type PullKey = (String, Vec<Credential>);

pub(super) struct Pulls {
    pub(super) runtime: cri::Client,
    pub(super) clock: Clock,
    pub(super) queue: PullQueue,
    pub(super) throttle: Arc<Mutex<Option<Throttle>>>,
    /// `None`: pulls are not recorded.
    pub(super) records: Option<Arc<Records>>,
    pub(super) in_progress: Mutex<HashMap<PullKey, PullInProgress>>,
}

/// A pull that is cancelled with its last waiter.
pub(super) struct PullInProgress {
    pull: WeakShared<BoxFuture<'static, Result<Pulled, String>>>,
    place: PullPlace,
}

impl PullInProgress {
    fn upgrade(&self) -> Option<Pull> {
        self.pull.upgrade()
    }
}

impl Pulls {
    /// Joins the pull of this image with these credentials, or starts it. It has the best rank of
    /// all that joined.
    pub(super) fn join(&self, image: &str, credentials: Vec<Credential>, rank: Rank) -> Pull {
        let mut in_progress = self.in_progress.lock();
        in_progress.retain(|_, pull| pull.upgrade().is_some());
        let key = (image.to_owned(), credentials);
        if let Some(known) = in_progress.get(&key)
            && let Some(pull) = known.upgrade()
        {
            known.place.raise(rank);
            return pull;
        }
        let queued = self.queue.enter(rank);
        let place = queued.place();
        let pull = self.begin(key.0.clone(), key.1.clone(), queued);
        if let Some(pull) = pull.downgrade() {
            in_progress.insert(key, PullInProgress { pull, place });
        }
        pull
    }

    /// The pull of this image with these credentials, if it is in progress or its result is kept.
    pub(super) fn find(&self, image: &str, credentials: &[Credential]) -> Option<Pull> {
        let key = (image.to_owned(), credentials.to_vec());
        self.in_progress.lock().get(&key).and_then(PullInProgress::upgrade)
    }

    /// Whether this image is being pulled, with any credentials.
    pub(super) fn is_pulling(&self, image: &str) -> bool {
        let in_progress = self.in_progress.lock();
        in_progress.iter().any(|((other, _), pull)| other == image && pull.upgrade().is_some())
    }

    fn begin(&self, image: String, credentials: Vec<Credential>, queued: QueuedPull) -> Pull {
        let (runtime, clock) = (self.runtime.clone(), self.clock.clone());
        let (throttle, records) = (self.throttle.clone(), self.records.clone());
        let pull = async move {
            let requested = Instant::now();
            let _permit = queued.admitted().await;
            let began = Instant::now();
            let begin = |records| threads::in_place(|| IntentGuard::begin(records, image.clone()));
            let intent = records.clone().map(begin);
            let mut intent = intent.transpose().map_err(|error| {
                format!("Failed to record image pull intent for container image {image:?}: {error}")
            })?;
            let may = || throttle.lock().as_mut().is_none_or(|t| t.take(clock.now().mono));
            // Dropping the calls cancels them in the runtime.
            let calls = try_each(&runtime, &image, &credentials, may);
            let pulled = tokio::time::timeout(PULL_DEADLINE, calls)
                .await
                .unwrap_or_else(|_| Err(pull_deadline_exceeded(&image)));
            // Writes to the disk, and waits for concurrent writes.
            threads::in_place(|| {
                if let (Some(intent), Ok((image_ref, with))) = (&mut intent, &pulled) {
                    let now = clock.now();
                    intent.stays = !intent.records.pulled(&image, image_ref, with.as_ref(), now);
                }
                drop(intent);
            });
            let (image_ref, _) = pulled?;
            Ok(Pulled { image_ref, took: began.elapsed(), waited: requested.elapsed() })
        };
        pull.boxed().shared()
    }
}

/// Tries each set of credentials until one succeeds; without any, pulls anonymously.
async fn try_each(
    runtime: &cri::Client,
    image: &str,
    credentials: &[Credential],
    may: impl Fn() -> bool,
) -> Result<(String, Option<PullCredential>), String> {
    let mut errors: Vec<String> = Vec::new();
    let attempts = match credentials {
        [] => vec![None],
        some => some.iter().map(Some).collect(),
    };
    for credential in attempts {
        if !may() {
            errors.push("pull QPS exceeded".to_owned());
            break;
        }
        let spec = ImageSpec { image: image.to_owned(), ..ImageSpec::default() };
        let auth = credential.map(|credential| auth(&credential.login));
        match runtime.pull_image(spec, auth, None).await {
            Ok(pulled) => return Ok((pulled.image_ref, credential.map(pass))),
            Err(error) => errors.push(error.pull_text()),
        }
    }
    errors.dedup();
    Err(match errors.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    })
}

fn auth(login: &Login) -> AuthConfig {
    AuthConfig {
        username: login.username.clone(),
        password: login.password.clone(),
        ..AuthConfig::default()
    }
}

/// Intent record of a pull. Removed with the pull, unless its result could not be recorded.
struct IntentGuard {
    records: Arc<Records>,
    image: String,
    stays: bool,
}

impl IntentGuard {
    fn begin(records: Arc<Records>, image: String) -> Result<Self, FileError> {
        records.begin(&image)?;
        Ok(Self { records, image, stays: false })
    }
}

impl Drop for IntentGuard {
    fn drop(&mut self) {
        if !self.stays {
            self.records.end(&self.image);
        }
    }
}
