//! Volumes of pods: decisions of the volume manager.
//!
//! Decided here, carried out in the shell. [`plan`] returns what one volume needs now, from its
//! state ([`VolumeState`]). The other modules each decide one aspect: the files ([`sources`],
//! [`payload`]), their ownership ([`ownership`]), the volume of a claim ([`claim`]), the medium of
//! an emptyDir ([`medium`]), service account tokens and their renewal ([`token`]), and what may be
//! unmounted ([`teardown`]).

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

/// Volumes that a container uses. A failure of an unused volume must not fail the pod. The volumes
/// of an unreadable pod are unknown; its running containers keep theirs.
pub fn used(pod: &Pod) -> impl Iterator<Item = &v1::Volume> {
    let volumes = pod.object.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| {
        pod.unreadable.is_some()
            || pod.containers.iter().any(|container| is_used_by(&volume.name, &container.spec))
    })
}

/// Type and source of a volume for users: `configMap settings`, `hostPath /data`, `emptyDir`.
pub fn source_text(volume: &v1::Volume) -> String {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let mut fields = fields.as_object().into_iter().flatten();
    let Some((kind, source)) = fields.find(|(name, _)| *name != "name") else {
        return "no source".to_owned();
    };
    let names = ["name", "secretName", "claimName", "path", "driver", "server"];
    match names.iter().find_map(|name| source.get(name)?.as_str()) {
        Some(name) => format!("{kind} {name}"),
        None => kind.clone(),
    }
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

/// State of one volume of a pod on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeState {
    /// It was set up once; containers may use it.
    pub ready: bool,
    /// Its sources may have changed since.
    pub sources_changed: bool,
    /// Time at which its content expires without a change of its sources.
    pub renew_at: Option<Mono>,
    pub failure: Option<Failure>,
}

/// Failure of the last attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    pub times: u32,
    pub retry_at: Mono,
}

/// What one volume needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeNeed {
    /// Set up or update: the same operation.
    SetUp,
    /// Nothing before this time, unless its sources change.
    Wait(Mono),
    Nothing,
}

pub fn plan(actual: &VolumeState, now: Mono) -> VolumeNeed {
    if actual.sources_changed || (!actual.ready && actual.failure.is_none()) {
        return VolumeNeed::SetUp;
    }
    let due = match (&actual.failure, actual.renew_at) {
        (Some(failure), _) => Some(failure.retry_at),
        (None, renewal) => renewal,
    };
    match due {
        Some(at) if at <= now => VolumeNeed::SetUp,
        Some(at) => VolumeNeed::Wait(at),
        None => VolumeNeed::Nothing,
    }
}

impl VolumeState {
    pub fn note_set_up(&mut self, renew_at: Option<Mono>) {
        *self = Self { ready: true, sources_changed: false, renew_at, failure: None };
    }

    /// A volume that was ready stays ready: its containers keep the content they have.
    pub fn note_failure(&mut self, message: String, now: Mono) {
        let times = self.failure.as_ref().map_or(0, |failure| failure.times);
        let wait = FIRST_RETRY.saturating_mul(1 << times.min(8)).min(LONGEST_RETRY);
        self.sources_changed = false;
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
    fn need_follows_from_the_volume_state() {
        let failed = |retry_at| Some(Failure { message: "m".into(), times: 1, retry_at });
        let new = VolumeState::default();
        let ready = VolumeState { ready: true, ..new.clone() };
        for (case, actual, want) in [
            ("new", new.clone(), VolumeNeed::SetUp),
            ("ready", ready.clone(), VolumeNeed::Nothing),
            ("edited", VolumeState { sources_changed: true, ..ready.clone() }, VolumeNeed::SetUp),
            (
                "token fresh",
                VolumeState { renew_at: Some(at(9)), ..ready.clone() },
                VolumeNeed::Wait(at(9)),
            ),
            ("token old", VolumeState { renew_at: Some(at(5)), ..ready }, VolumeNeed::SetUp),
            (
                "failed",
                VolumeState { failure: failed(at(9)), ..new.clone() },
                VolumeNeed::Wait(at(9)),
            ),
            (
                "failed, retry due",
                VolumeState { failure: failed(at(5)), ..new.clone() },
                VolumeNeed::SetUp,
            ),
            (
                "failed, news",
                VolumeState { failure: failed(at(9)), sources_changed: true, ..new },
                VolumeNeed::SetUp,
            ),
        ] {
            assert_eq!(plan(&actual, at(5)), want, "{case}");
        }
    }

    #[test]
    fn retry_delay_grows_up_to_two_minutes() {
        let mut actual = VolumeState::default();
        let mut waits = Vec::new();
        for _ in 0..11 {
            actual.note_failure("no".into(), at(0));
            waits.push(actual.failure.as_ref().unwrap().retry_at.0.as_millis());
        }
        let want = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000, 122_000];
        assert_eq!(waits, want);
        actual.note_set_up(None);
        assert_eq!(actual, VolumeState { ready: true, ..VolumeState::default() });
    }

    #[test]
    fn unmounted_volume_is_not_used() {
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
