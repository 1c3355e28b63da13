//! Volumes: what a pod's containers find in their folders.
//!
//! Chosen here, done in the shell. [`plan`] says what one volume needs now, from what is known of
//! it ([`Actual`]). The rest answers one question each: which files ([`sources`], [`payload`]),
//! whose they are ([`ownership`]), what a claim leads to ([`claim`]), where memory comes from
//! ([`medium`]), which token and until when ([`token`]), what may be unmounted ([`teardown`]).

pub mod affinity;
pub mod claim;
pub mod medium;
pub mod nested;
pub mod ownership;
pub mod payload;
pub mod sources;
pub mod teardown;
pub mod token;

use std::time::Duration;

use k8s_openapi::api::core::v1;

use crate::pod::Pod;
use crate::time::Mono;

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(122);

/// The volumes that some container uses. The others are not worth a failure. Which ones the
/// containers of an unreadable pod use is not known; those that run go on using them.
pub fn used(pod: &Pod) -> impl Iterator<Item = &v1::Volume> {
    let volumes = pod.object.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| {
        pod.unreadable.is_some()
            || pod.containers.iter().any(|container| is_used_by(&volume.name, &container.spec))
    })
}

fn is_used_by(volume: &str, container: &v1::Container) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    let mut devices = container.volume_devices.iter().flatten();
    let mut files = container.env.iter().flatten().filter_map(|variable| {
        let from = variable.value_from.as_ref()?;
        from.file_key_ref.as_ref()
    });
    mounts.any(|mount| mount.name == volume)
        || devices.any(|device| device.name == volume)
        || files.any(|file| file.volume_name == volume)
}

/// One volume of one pod, as this node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actual {
    /// It was set up once; containers may use it.
    pub ready: bool,
    /// What it is made of may have changed since.
    pub news: bool,
    /// When its content gets too old, and nobody else will tell.
    pub renew_at: Option<Mono>,
    pub failure: Option<Failure>,
}

/// The last try failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    pub times: u32,
    pub retry_at: Mono,
}

/// What one volume needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To be set up, or brought up to date: the same act.
    SetUp,
    /// Nothing before this time, unless there is news.
    Wait(Mono),
    Nothing,
}

pub fn plan(actual: &Actual, now: Mono) -> Need {
    if actual.news || (!actual.ready && actual.failure.is_none()) {
        return Need::SetUp;
    }
    let due = match (&actual.failure, actual.renew_at) {
        (Some(failure), _) => Some(failure.retry_at),
        (None, renewal) => renewal,
    };
    match due {
        Some(at) if at <= now => Need::SetUp,
        Some(at) => Need::Wait(at),
        None => Need::Nothing,
    }
}

impl Actual {
    pub fn note_set_up(&mut self, renew_at: Option<Mono>) {
        *self = Self { ready: true, news: false, renew_at, failure: None };
    }

    /// A volume that was ready stays so: its containers go on with what they have.
    pub fn note_failure(&mut self, message: String, now: Mono) {
        let times = self.failure.as_ref().map_or(0, |failure| failure.times);
        let wait = FIRST_RETRY.saturating_mul(1 << times.min(8)).min(LONGEST_RETRY);
        self.news = false;
        self.failure =
            Some(Failure { message, times: times.saturating_add(1), retry_at: now + wait });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builders::pod;

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    #[test]
    fn what_a_volume_needs_follows_from_what_is_known_of_it() {
        let failed = |retry_at| Some(Failure { message: "m".into(), times: 1, retry_at });
        let new = Actual::default();
        let ready = Actual { ready: true, ..new.clone() };
        for (case, actual, want) in [
            ("new", new.clone(), Need::SetUp),
            ("ready", ready.clone(), Need::Nothing),
            ("edited", Actual { news: true, ..ready.clone() }, Need::SetUp),
            ("token fresh", Actual { renew_at: Some(at(9)), ..ready.clone() }, Need::Wait(at(9))),
            ("token old", Actual { renew_at: Some(at(5)), ..ready }, Need::SetUp),
            ("failed", Actual { failure: failed(at(9)), ..new.clone() }, Need::Wait(at(9))),
            ("failed long ago", Actual { failure: failed(at(5)), ..new.clone() }, Need::SetUp),
            ("failed, news", Actual { failure: failed(at(9)), news: true, ..new }, Need::SetUp),
        ] {
            assert_eq!(plan(&actual, at(5)), want, "{case}");
        }
    }

    #[test]
    fn tries_come_at_longer_and_longer_intervals_up_to_two_minutes() {
        let mut actual = Actual::default();
        let mut waits = Vec::new();
        for _ in 0..11 {
            actual.note_failure("no".into(), at(0));
            waits.push(actual.failure.as_ref().unwrap().retry_at.0.as_millis());
        }
        let want = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000, 122_000];
        assert_eq!(waits, want);
        actual.note_set_up(None);
        assert_eq!(actual, Actual { ready: true, ..Actual::default() });
    }

    #[test]
    fn row_48_a_volume_that_nobody_mounts_is_not_used() {
        let pod = pod("p")
            .container_with("a", json!({"volumeMounts": [{"name": "mounted", "mountPath": "/m"}]}))
            .container_with(
                "b",
                json!({
                    "volumeDevices": [{"name": "device", "devicePath": "/d"}],
                    "env": [{"name": "E", "valueFrom": {"fileKeyRef":
                        {"volumeName": "file", "path": "p", "key": "k"}}}],
                }),
            )
            .spec(
                "volumes",
                json!([{"name": "mounted"}, {"name": "idle"}, {"name": "device"},
                {"name": "file"}]),
            )
            .build();
        let names: Vec<&str> = used(&pod).map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["mounted", "device", "file"]);
    }
}
