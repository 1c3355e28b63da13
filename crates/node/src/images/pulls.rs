//! Pulls under way.
//!
//! The same image with the same credentials, wanted by many pods at once, is pulled once. With
//! others it is not the same: whoever waits for a pull gets what its credentials opened.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use podwright_core::credential::{Credential, Login};
use podwright_core::image::Throttle;
use podwright_core::image::access::Pass;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use podwright_proto::cri::{AuthConfig, ImageSpec};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::credentials::pass;
use super::records::Records;

/// A pull that several may wait for.
pub(super) type Pull = Shared<BoxFuture<'static, Result<Pulled, String>>>;

#[derive(Clone, Debug)]
pub(super) struct Pulled {
    pub(super) image_ref: String,
    pub(super) took: Duration,
    pub(super) waited: Duration,
}

type Same = (String, Vec<Credential>);

pub(super) struct Pulls {
    pub(super) runtime: cri::Client,
    pub(super) clock: Clock,
    pub(super) places: Arc<Semaphore>,
    pub(super) throttle: Arc<Mutex<Option<Throttle>>>,
    /// `None`: nothing is written down.
    pub(super) records: Option<Arc<Records>>,
    pub(super) under_way: Mutex<HashMap<Same, UnderWay>>,
}

/// A pull that ends with the last who waits for it.
type UnderWay = WeakShared<BoxFuture<'static, Result<Pulled, String>>>;

impl Pulls {
    /// Joins the pull of this image with these credentials if one is under way, else begins it.
    pub(super) fn join(&self, image: &str, credentials: Vec<Credential>) -> Pull {
        let mut under_way = self.under_way.lock();
        under_way.retain(|_, pull| pull.upgrade().is_some());
        let same = (image.to_owned(), credentials);
        if let Some(pull) = under_way.get(&same).and_then(WeakShared::upgrade) {
            return pull;
        }
        let pull = self.begin(same.0.clone(), same.1.clone());
        if let Some(weak) = pull.downgrade() {
            under_way.insert(same, weak);
        }
        pull
    }

    /// The pull of this image with these credentials, if one is under way or its outcome is kept.
    pub(super) fn find(&self, image: &str, credentials: &[Credential]) -> Option<Pull> {
        let same = (image.to_owned(), credentials.to_vec());
        self.under_way.lock().get(&same).and_then(WeakShared::upgrade)
    }

    /// Whether this image is being pulled, with whatever credentials.
    pub(super) fn concern(&self, image: &str) -> bool {
        let under_way = self.under_way.lock();
        under_way.iter().any(|((other, _), pull)| other == image && pull.upgrade().is_some())
    }

    fn begin(&self, image: String, credentials: Vec<Credential>) -> Pull {
        let (runtime, clock, places) =
            (self.runtime.clone(), self.clock.clone(), self.places.clone());
        let (throttle, records) = (self.throttle.clone(), self.records.clone());
        let pull = async move {
            let asked = Instant::now();
            let _place = places.acquire_owned().await.map_err(|closed| closed.to_string())?;
            let began = Instant::now();
            let noted = records.clone().map(|records| Noted::begin(records, image.clone()));
            let mut noted = noted.transpose().map_err(|error| {
                format!("Failed to record image pull intent for container image {image:?}: {error}")
            })?;
            let may = || throttle.lock().as_mut().is_none_or(|t| t.take(clock.now().mono));
            let (image_ref, with) = try_each(&runtime, &image, &credentials, may).await?;
            if let Some(noted) = &mut noted {
                noted.stays = !noted.records.pulled(&image, &image_ref, with.as_ref(), clock.now());
            }
            Ok(Pulled { image_ref, took: began.elapsed(), waited: asked.elapsed() })
        };
        pull.boxed().shared()
    }
}

/// One call for each set of credentials, until one is let in; without any, one call without.
async fn try_each(
    runtime: &cri::Client,
    image: &str,
    credentials: &[Credential],
    may: impl Fn() -> bool,
) -> Result<(String, Option<Pass>), String> {
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

/// The note of a pull under way. It goes with the pull, unless what came could not be written down.
struct Noted {
    records: Arc<Records>,
    image: String,
    stays: bool,
}

impl Noted {
    fn begin(records: Arc<Records>, image: String) -> Result<Self, FileError> {
        records.begin(&image)?;
        Ok(Self { records, image, stays: false })
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if !self.stays {
            self.records.end(&self.image);
        }
    }
}
