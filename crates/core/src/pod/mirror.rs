//! Mirror pods: API objects that represent static pods, and the actions that keep them current.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use podwright_api::annotations::{ANNOTATION_HASH, ANNOTATION_MIRROR};

use super::Pod;
use super::desired::{MirrorPod, mirror_is_current};
use crate::ids::PodName;

/// One change in the API.
#[derive(Clone, Debug)]
pub enum MirrorAction {
    Create(Arc<Pod>),
    Delete(MirrorPod),
}

/// A static pod of this node.
#[derive(Clone, Debug)]
pub struct Static {
    pub pod: Arc<Pod>,
    /// It is terminating: its mirror pod stays to show that, but is not recreated.
    pub ending: bool,
}

/// The actions after which exactly the running static pods have a mirror pod.
///
/// A mirror pod that is outdated or being deleted is deleted first; the new one is created once it
/// is gone. A mirror pod without a static pod is kept until all sources have delivered their pods
/// (`all_delivered`).
pub fn required_actions(
    pods: &[Static],
    mirrors: &[MirrorPod],
    all_delivered: bool,
) -> Vec<MirrorAction> {
    let mut actions = Vec::new();
    let names: BTreeSet<&PodName> = pods.iter().map(|p| &p.pod.name).collect();
    for Static { pod, ending } in pods {
        match mirrors.iter().find(|mirror| mirror.pod.name == pod.name) {
            Some(mirror)
                if mirror.pod.deletion.is_some() || !mirror_is_current(&mirror.pod, pod) =>
            {
                actions.push(MirrorAction::Delete(mirror.clone()));
            }
            Some(_) => {}
            None if *ending => {}
            None => actions.push(MirrorAction::Create(pod.clone())),
        }
    }
    let is_orphan = |mirror: &&MirrorPod| all_delivered && !names.contains(&mirror.pod.name);
    let orphans = mirrors.iter().filter(is_orphan);
    actions.extend(orphans.map(|mirror| MirrorAction::Delete(mirror.clone())));
    actions
}

/// The object to create: the pod, annotated as a mirror pod and owned by its node.
pub fn object(pod: &Pod, node_name: &str, node_uid: &str) -> v1::Pod {
    let mut object = (*pod.object).clone();
    let hash = pod.annotation(ANNOTATION_HASH).unwrap_or_default().to_owned();
    let meta = &mut object.metadata;
    meta.annotations.get_or_insert_default().insert(ANNOTATION_MIRROR.into(), hash);
    meta.uid = None;
    meta.resource_version = None;
    meta.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node_name.into(),
        uid: node_uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    object.status = None;
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::pod;
    use crate::ids::MirrorUid;
    use crate::pod::Source;

    fn static_pod(name: &str, hash: &str, ending: bool) -> Static {
        let pod = pod(name).container("c").annotation(ANNOTATION_HASH, hash);
        Static { pod: Arc::new(pod.build_from(Source::File)), ending }
    }

    fn mirror(name: &str, hash: &str, deleting: bool) -> MirrorPod {
        let pod = pod(name).container("c").annotation(ANNOTATION_MIRROR, hash);
        let pod = if deleting { pod.deleted(1, 0) } else { pod };
        MirrorPod { uid: MirrorUid::new("m"), pod: Arc::new(pod.build()) }
    }

    fn actions(pods: &[Static], mirrors: &[MirrorPod]) -> Vec<String> {
        let text = |action: &MirrorAction| match action {
            MirrorAction::Create(pod) => format!("create {}", pod.name.name),
            MirrorAction::Delete(mirror) => format!("delete {}", mirror.pod.name.name),
        };
        required_actions(pods, mirrors, true).iter().map(text).collect()
    }

    #[test]
    fn each_static_pod_gets_a_current_mirror_and_no_other_mirror_stays() {
        for (case, pods, mirrors, want) in [
            ("no mirror yet", vec![static_pod("a", "1", false)], vec![], vec!["create a"]),
            ("current", vec![static_pod("a", "1", false)], vec![mirror("a", "1", false)], vec![]),
            (
                "edited",
                vec![static_pod("a", "2", false)],
                vec![mirror("a", "1", false)],
                vec!["delete a"],
            ),
            (
                "being deleted",
                vec![static_pod("a", "1", false)],
                vec![mirror("a", "1", true)],
                vec!["delete a"],
            ),
            ("orphan", vec![], vec![mirror("a", "1", false)], vec!["delete a"]),
            (
                "ending, mirror stays",
                vec![static_pod("a", "1", true)],
                vec![mirror("a", "1", false)],
                vec![],
            ),
            ("ending, none is made", vec![static_pod("a", "1", true)], vec![], vec![]),
        ] {
            assert_eq!(actions(&pods, &mirrors), want, "{case}");
        }
        let edited = (static_pod("a", "2", false), mirror("a", "1", false));
        let early = required_actions(&[edited.0], &[edited.1, mirror("b", "1", false)], false);
        assert_eq!(early.len(), 1, "the orphan's static pod may still be delivered");
    }

    #[test]
    fn mirror_is_owned_by_its_node_and_carries_the_hash() {
        let pod = static_pod("web", "abc", false).pod;
        let object = object(&pod, "node-a", "n1");
        assert_eq!(object.metadata.annotations.unwrap()[ANNOTATION_MIRROR], "abc");
        let owners = object.metadata.owner_references.unwrap();
        assert_eq!((owners.len(), owners[0].controller), (1, Some(true)));
        assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("Node", "n1"));
        assert_eq!((object.metadata.uid, object.status), (None, None));
    }
}
