//! Conversion and validation of the runtime's replies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::labels;
use podwright_core::observed::{
    Exit, Instance, ListedState, Mount, Resources, Sandbox, State, User,
};
use podwright_core::pod::ContainerHash;
use podwright_proto::cri;

use crate::error::Error;

/// A container with the data needed to read its termination message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    pub instance: Instance,
    pub termination: Termination,
}

/// Where a container writes its termination message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// The file on the host behind `terminationMessagePath`.
    pub host_path: Option<String>,
    /// `FallbackToLogsOnError`: without a file, use the end of the log.
    pub fallback_to_logs: bool,
}

/// The pod an object belongs to, from its labels.
pub(crate) fn owner(labels: &BTreeMap<String, String>) -> Option<(PodUid, PodName)> {
    let label = |key| labels.get(key).filter(|v| !v.is_empty()).map(String::as_str);
    let uid = PodUid::new(label(labels::POD_UID)?);
    Some((uid, PodName::new(label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?)))
}

pub(crate) fn listed_state(state: i32) -> ListedState {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::ContainerCreated) => ListedState::Created,
        Ok(cri::ContainerState::ContainerRunning) => ListedState::Running,
        Ok(cri::ContainerState::ContainerExited) => ListedState::Exited,
        Ok(cri::ContainerState::ContainerUnknown) | Err(_) => ListedState::Unknown,
    }
}

/// The restart count a container was created with: the kubelet's annotation, else the attempt of
/// the runtime's metadata.
pub(crate) fn attempt(
    annotations: &BTreeMap<String, String>,
    metadata: Option<&cri::ContainerMetadata>,
) -> u32 {
    let written = annotations.get(labels::RESTART_COUNT).and_then(|count| count.parse().ok());
    written.or_else(|| metadata.map(|meta| meta.attempt)).unwrap_or(0)
}

pub(crate) fn sandbox_ready(state: i32) -> bool {
    state == cri::PodSandboxState::SandboxReady as i32
}

pub(crate) fn sandbox(status: &cri::PodSandboxStatus) -> Result<Sandbox, Error> {
    const CALL: &str = "PodSandboxStatus";
    let bad = |missing: &str| Error::bad_reply(CALL, &status.id, format!("{missing} is not set"));
    if status.id.is_empty() {
        return Err(bad("id"));
    }
    let Some(meta) = &status.metadata else { return Err(bad("metadata")) };
    if meta.name.is_empty() || meta.namespace.is_empty() || meta.uid.is_empty() {
        return Err(bad("metadata.name, namespace or uid"));
    }
    let created = sandbox_created(status.created_at);
    let options = status.linux.as_ref().and_then(|l| l.namespaces.as_ref()?.options.as_ref());
    let host_network = options.map(|o| o.network == cri::NamespaceMode::Node as i32);
    let ips = status.network.as_ref().map(|network| {
        let more = network.additional_ips.iter().map(|ip| ip.ip.as_str());
        let all = std::iter::once(network.ip.as_str()).chain(more).filter(|ip| !ip.is_empty());
        // One invalid address invalidates all of them.
        all.map(str::parse::<IpAddr>).collect::<Result<Vec<_>, _>>().unwrap_or_default()
    });
    Ok(Sandbox {
        id: SandboxId::new(status.id.as_str()),
        attempt: meta.attempt,
        created,
        ready: sandbox_ready(status.state),
        host_network,
        handler: status.runtime_handler.clone(),
        ips,
    })
}

pub(crate) fn container(
    status: &cri::ContainerStatus,
    sandbox: SandboxId,
) -> Result<ObservedContainer, Error> {
    const CALL: &str = "ContainerStatus";
    let bad = |missing: &str| Error::bad_reply(CALL, &status.id, format!("{missing} is not set"));
    if status.id.is_empty() {
        return Err(bad("id"));
    }
    let name = status.metadata.as_ref().map(|m| m.name.as_str()).filter(|n| !n.is_empty());
    let Some(name) = name else { return Err(bad("metadata.name")) };
    let created = nanos(status.created_at).ok_or_else(|| bad("created_at"))?;
    let image = status.image.as_ref().map(|i| i.image.clone()).filter(|i| !i.is_empty());
    let Some(image) = image else { return Err(bad("image")) };
    if status.image_ref.is_empty() {
        return Err(bad("image_ref"));
    }
    let annotation = |key| status.annotations.get(key).map(String::as_str);
    let started = nanos(status.started_at).unwrap_or(created);
    let state = match listed_state(status.state) {
        ListedState::Created => State::Created,
        ListedState::Running => State::Running { started },
        ListedState::Exited => State::Exited(Exit {
            code: status.exit_code,
            reason: status.reason.clone(),
            message: status.message.clone(),
            started,
            finished: nanos(status.finished_at).unwrap_or(started),
        }),
        ListedState::Unknown => State::Unknown,
    };
    let path = annotation(labels::TERMINATION_MESSAGE_PATH).filter(|p| !p.is_empty());
    let host_path = path.and_then(|path| {
        let mount = status.mounts.iter().find(|m| m.container_path == path)?;
        Some(mount.host_path.clone())
    });
    let policy = annotation(labels::TERMINATION_MESSAGE_POLICY);
    let termination =
        Termination { host_path, fallback_to_logs: policy == Some("FallbackToLogsOnError") };
    let instance = Instance {
        id: ContainerId::new(status.id.as_str()),
        container: name.into(),
        sandbox,
        attempt: attempt(&status.annotations, status.metadata.as_ref()),
        hash: annotation(labels::CONTAINER_HASH).and_then(ContainerHash::parse),
        created,
        state,
        image,
        image_ref: status.image_ref.clone(),
        resources: status.resources.as_ref().and_then(|r| r.linux.as_ref()).map(resources),
        user: status.user.as_ref().and_then(|u| u.linux.as_ref()).map(|user| User {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: user.supplemental_groups.clone(),
        }),
        stop_signal: stop_signal(status.stop_signal()),
        log_path: Some(status.log_path.clone()).filter(|p| !p.is_empty()),
        mounts: status.mounts.iter().map(mount).collect(),
    };
    Ok(ObservedContainer { instance, termination })
}

/// The names of the CRI are those of the API, without signs.
fn stop_signal(signal: cri::Signal) -> Option<String> {
    let name = signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-");
    (signal != cri::Signal::RuntimeDefault).then_some(name)
}

fn mount(mount: &cri::Mount) -> Mount {
    Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        read_only: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
    }
}

fn resources(linux: &cri::LinuxContainerResources) -> Resources {
    let set = |value: i64| (value != 0).then_some(value);
    Resources {
        cpu_shares: set(linux.cpu_shares),
        cpu_quota: set(linux.cpu_quota),
        cpu_period: set(linux.cpu_period),
        memory_limit: set(linux.memory_limit_in_bytes),
    }
}

/// The runtime's times are nanoseconds since 1970, zero for "never".
pub(crate) fn nanos(value: i64) -> Option<Timestamp> {
    if value <= 0 {
        return None;
    }
    Timestamp::from_nanosecond(i128::from(value)).ok()
}

/// A sandbox whose creation was interrupted, for example by a crash of the agent, has no creation
/// time. It sorts as the oldest and must not be ignored: otherwise it would never be removed.
pub(crate) fn sandbox_created(value: i64) -> Timestamp {
    nanos(value).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::error::Kind;

    fn status() -> cri::ContainerStatus {
        cri::ContainerStatus {
            id: "c1".into(),
            metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 3 }),
            created_at: 1_000_000_000,
            image: Some(cri::ImageSpec { image: "i".into(), ..Default::default() }),
            image_ref: "sha256:1".into(),
            ..Default::default()
        }
    }

    fn read(status: &cri::ContainerStatus) -> Result<ObservedContainer, Error> {
        container(status, SandboxId::new("s1"))
    }

    #[test]
    fn stop_signal_has_the_name_of_the_api() {
        for (signal, want) in [
            (cri::Signal::RuntimeDefault, None),
            (cri::Signal::Sigterm, Some("SIGTERM")),
            (cri::Signal::Sigrtminplus3, Some("SIGRTMIN+3")),
        ] {
            let status = cri::ContainerStatus { stop_signal: signal.into(), ..status() };
            assert_eq!(read(&status).unwrap().instance.stop_signal.as_deref(), want);
        }
    }

    #[test]
    fn container_reply_without_required_fields_is_refused() {
        type Edit = fn(&mut cri::ContainerStatus);
        let cases: [(&str, Edit); 5] = [
            ("id", |s| s.id.clear()),
            ("metadata.name", |s| s.metadata = None),
            ("created_at", |s| s.created_at = 0),
            ("image", |s| s.image = None),
            ("image_ref", |s| s.image_ref.clear()),
        ];
        for (field, edit) in cases {
            let mut status = status();
            edit(&mut status);
            let error = read(&status).unwrap_err();
            assert_eq!(error.kind, Kind::BadReply, "{field}");
            assert!(error.message.contains(field), "{field}: {error}");
        }
        assert!(read(&status()).is_ok());
    }

    #[test]
    fn restart_count_comes_from_the_annotation() {
        let mut seen = status();
        seen.annotations.insert(labels::RESTART_COUNT.into(), "7".into());
        assert_eq!(read(&seen).unwrap().instance.attempt, 7);
        assert_eq!(read(&status()).unwrap().instance.attempt, 3, "else the attempt");
    }

    #[test]
    fn unknown_state_value_is_unknown() {
        let odd = cri::ContainerStatus { state: 99, ..status() };
        assert_eq!(read(&odd).unwrap().instance.state, State::Unknown);
    }

    #[test]
    fn one_unreadable_address_discards_all() {
        let meta = cri::PodSandboxMetadata {
            name: "p".into(),
            namespace: "n".into(),
            uid: "u".into(),
            attempt: 0,
        };
        let network = |ip: &str, more: &str| cri::PodSandboxNetworkStatus {
            ip: ip.into(),
            additional_ips: vec![cri::PodIp { ip: more.into() }],
        };
        let with = |network| cri::PodSandboxStatus {
            id: "s".into(),
            metadata: Some(meta.clone()),
            created_at: 1,
            network,
            ..Default::default()
        };
        let ips = |network| sandbox(&with(network)).unwrap().ips;
        assert_eq!(ips(None), None);
        assert_eq!(ips(Some(network("10.0.0.1", "fd00::1"))).unwrap().len(), 2);
        assert_eq!(ips(Some(network("10.0.0.1", "nonsense"))), Some(vec![]));
    }

    #[test]
    fn partially_created_sandbox_is_observed_and_sorts_oldest() {
        for no_time in [0, i64::MIN, -6_795_364_578_871_345_152] {
            let cut_off = cri::PodSandboxStatus { created_at: no_time, ..sandbox_status() };
            let seen = sandbox(&cut_off).unwrap();
            assert!(seen.created < sandbox(&sandbox_status()).unwrap().created, "{no_time}");
        }
    }

    fn sandbox_status() -> cri::PodSandboxStatus {
        let metadata = cri::PodSandboxMetadata {
            name: "p".into(),
            uid: "u".into(),
            namespace: "n".into(),
            attempt: 1,
        };
        let network = cri::PodSandboxNetworkStatus { ip: "10.0.0.2".into(), ..Default::default() };
        cri::PodSandboxStatus {
            id: "s1".into(),
            metadata: Some(metadata),
            created_at: 1_000_000_000,
            network: Some(network),
            labels: [("io.kubernetes.pod.uid".into(), "u".into())].into(),
            ..Default::default()
        }
    }

    proptest::proptest! {
        #![proptest_config(podwright_testkit::mutation::config())]

        #[test]
        fn mutated_reply_is_refused_or_parsed(
            of_container in podwright_testkit::mutation::mutated(vec![status().encode_to_vec()]),
            of_sandbox in podwright_testkit::mutation::mutated(vec![sandbox_status().encode_to_vec()]),
        ) {
            if let Ok(status) = cri::ContainerStatus::decode(of_container.as_slice())
                && let Ok(seen) = read(&status)
            {
                assert_eq!(seen.instance.id.as_str(), status.id, "the id is kept");
            }
            if let Ok(status) = cri::PodSandboxStatus::decode(of_sandbox.as_slice())
                && let Ok(seen) = sandbox(&status)
            {
                assert_eq!(seen.id.as_str(), status.id);
            }
        }
    }
}
