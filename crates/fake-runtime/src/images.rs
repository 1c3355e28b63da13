//! Images that are present, and those a registry offers.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_api::image_name::{ImageNameError, full_name};
use podwright_proto::cri;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::random::Random;

/// An image derived from its name: its id and digest follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeImage {
    name: String,
    id: Option<String>,
    size: u64,
    user: Option<i64>,
    username: String,
    pinned: bool,
}

impl FakeImage {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            id: None,
            size: 1 << 20,
            user: None,
            username: String::new(),
            pinned: false,
        }
    }

    /// Its id, where it must be that of an image in a real runtime.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// The image's user, where it is a number.
    pub fn user(mut self, uid: i64) -> Self {
        self.user = Some(uid);
        self
    }

    /// The image's user, where it is a name.
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.username = name.into();
        self
    }

    pub fn pinned(mut self) -> Self {
        self.pinned = true;
        self
    }
}

impl From<&str> for FakeImage {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for FakeImage {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// Behaviour of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    takes: Duration,
    ends: PullEnd,
    needs: Option<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PullEnd {
    Arrives,
    Fails(Code, String),
    Stalls,
}

impl Pull {
    pub fn takes(takes: Duration) -> Self {
        Self { takes, ends: PullEnd::Arrives, needs: None }
    }

    pub fn fails(after: Duration, code: Code, message: impl Into<String>) -> Self {
        Self { takes: after, ends: PullEnd::Fails(code, message.into()), needs: None }
    }

    /// Stalls half way, until the caller gives up.
    pub fn stalls() -> Self {
        Self { takes: Duration::ZERO, ends: PullEnd::Stalls, needs: None }
    }

    /// Only with this name and password; other callers are refused.
    pub fn needs(mut self, username: impl Into<String>, password: impl Into<String>) -> Self {
        self.needs = Some((username.into(), password.into()));
        self
    }
}

/// A pull under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulling {
    pub image: String,
    /// Progress, from zero to one.
    pub progress: f64,
}

/// Result of PullImage, and when it is returned.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) seq: u64,
    pub(super) takes: Duration,
    pub(super) outcome: FetchOutcome,
}

#[derive(Debug)]
pub(super) enum FetchOutcome {
    Image(FakeImage),
    Failure(Status),
    Never,
}

#[derive(Debug, Default)]
pub(super) struct Images {
    /// By id.
    here: BTreeMap<String, cri::Image>,
    offers: BTreeMap<String, (FakeImage, Pull)>,
    under_way: BTreeMap<u64, (String, Instant, Option<Duration>)>,
    next: u64,
}

impl Images {
    pub(super) fn add(&mut self, image: &FakeImage) -> Result<cri::Image, ImageNameError> {
        let name = full_name(&image.name)?;
        let digest = image.id.clone().unwrap_or_else(|| digest_of(&name));
        let repository = repository(&name).to_owned();
        let (id, mut found) = match name.split_once('@') {
            Some((_, digest)) => (digest.to_owned(), cri::Image::default()),
            None => (digest, cri::Image { repo_tags: vec![name.clone()], ..Default::default() }),
        };
        found.repo_digests = vec![format!("{repository}@{id}")];
        found.size = image.size;
        found.uid = image.user.map(|value| cri::Int64Value { value });
        found.username.clone_from(&image.username);
        found.pinned = image.pinned;
        found.spec = Some(cri::ImageSpec::default());
        found.id.clone_from(&id);
        self.here.insert(id, found.clone());
        Ok(found)
    }

    pub(super) fn offer(&mut self, image: FakeImage, pull: Pull) {
        let name = full_name(&image.name).unwrap_or_else(|_| image.name.clone());
        self.offers.insert(name, (image, pull));
    }

    /// By id, with or without its algorithm, or by any of its names.
    pub(super) fn find(&self, reference: &str) -> Option<&cri::Image> {
        let by_id = self.here.get(reference);
        let by_id = by_id.or_else(|| self.here.get(&format!("sha256:{reference}")));
        by_id.or_else(|| {
            let name = full_name(reference).ok()?;
            let named = |image: &&cri::Image| {
                image.repo_tags.contains(&name) || image.repo_digests.contains(&name)
            };
            self.here.values().find(named)
        })
    }

    pub(super) fn remove(&mut self, reference: &str) {
        if let Some(id) = self.find(reference).map(|image| image.id.clone()) {
            self.here.remove(&id);
        }
    }

    pub(super) fn all(&self) -> Vec<cri::Image> {
        self.here.values().cloned().collect()
    }

    /// Begins a pull. It is under way until [`Images::settle`].
    pub(super) fn begin_pull(
        &mut self,
        reference: &str,
        auth: Option<&cri::AuthConfig>,
    ) -> Result<Fetch, Status> {
        let name = full_name(reference).map_err(|bad| {
            let text = format!("failed to parse image reference {reference:?}: {bad}");
            Status::new(Code::Unknown, text)
        })?;
        let failed = |code, why: &str| {
            let text = format!("failed to pull and unpack image {name:?}: {why}");
            FetchOutcome::Failure(Status::new(code, text))
        };
        let (takes, outcome) = match self.offers.get(&name) {
            None => {
                let why = format!("failed to resolve reference {name:?}: {name}: not found");
                (Duration::ZERO, failed(Code::NotFound, &why))
            }
            Some((_, pull)) if !admits(pull, auth) => {
                let why = format!(
                    "failed to resolve reference {name:?}: pull access denied, repository does \
                     not exist or may require authorization: server message: \
                     insufficient_scope: authorization failed"
                );
                (Duration::ZERO, failed(Code::Unknown, &why))
            }
            Some((image, pull)) => {
                let outcome = match &pull.ends {
                    PullEnd::Arrives => FetchOutcome::Image(image.clone()),
                    PullEnd::Fails(code, why) => failed(*code, why),
                    PullEnd::Stalls => FetchOutcome::Never,
                };
                (pull.takes, outcome)
            }
        };
        let seq = self.next;
        self.next += 1;
        let lasts = (!matches!(outcome, FetchOutcome::Never)).then_some(takes);
        self.under_way.insert(seq, (name, Instant::now(), lasts));
        Ok(Fetch { seq, takes, outcome })
    }

    pub(super) fn settle(&mut self, seq: u64) {
        self.under_way.remove(&seq);
    }

    pub(super) fn pulls(&self) -> Vec<Pulling> {
        let pulling = |(image, since, lasts): &(String, Instant, Option<Duration>)| {
            let progress = match lasts {
                None => 0.5,
                Some(lasts) if lasts.is_zero() => 1.0,
                Some(lasts) => (since.elapsed().as_secs_f64() / lasts.as_secs_f64()).min(1.0),
            };
            Pulling { image: image.clone(), progress }
        };
        self.under_way.values().map(pulling).collect()
    }
}

fn admits(pull: &Pull, auth: Option<&cri::AuthConfig>) -> bool {
    let Some((username, password)) = &pull.needs else { return true };
    auth.is_some_and(|auth| auth.username == *username && auth.password == *password)
}

/// A full name without tag or digest.
fn repository(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(before, _)| before);
    match name.rsplit_once(':') {
        // A colon before the last slash belongs to the registry's port.
        Some((before, tag)) if !tag.contains('/') => before,
        Some(_) | None => name,
    }
}

fn digest_of(name: &str) -> String {
    // FNV-1a: any well distributed hash works, as long as a name always gives the same.
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("sha256:{}", Random::new(seed, 0).hex64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_every_name_it_has() {
        let mut images = Images::default();
        let image = images.add(&FakeImage::new("localhost:5000/app:v1")).unwrap();
        let hex = image.id.strip_prefix("sha256:").unwrap();
        let digest = format!("localhost:5000/app@{}", image.id);
        for name in ["localhost:5000/app:v1", image.id.as_str(), hex, digest.as_str()] {
            assert_eq!(images.find(name), Some(&image), "{name}");
        }
        assert_eq!(images.find("localhost:5000/app:v2"), None);
        images.remove(hex);
        assert_eq!(images.all(), []);
    }

    #[test]
    fn an_image_named_by_digest_has_that_digest_and_no_tag() {
        let mut images = Images::default();
        let digest = format!("sha256:{}", "b".repeat(64));
        let image = images.add(&FakeImage::new(format!("app@{digest}"))).unwrap();
        let digests = vec![format!("docker.io/library/app@{digest}")];
        assert_eq!((image.id, image.repo_tags, image.repo_digests), (digest, vec![], digests));
    }
}
