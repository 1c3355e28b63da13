//! The API objects that stand for static pods, and what is wrong with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::registry::{Mirror, mirrors_faithfully};
use super::{ANNOTATION_HASH, ANNOTATION_MIRROR, Pod};
use crate::ids::PodName;

/// One thing to do in the API.
#[derive(Clone, Debug)]
pub enum Act {
    Create(Arc<Pod>),
    Delete(Mirror),
}

/// A static pod of this node.
#[derive(Clone, Debug)]
pub struct Static {
    pub pod: Arc<Pod>,
    /// It began to end: its mirror stays to show that, but is not made anew.
    pub ending: bool,
}

/// What the mirrors need so that each static pod that runs has one, and only it.
///
/// A mirror that does not show its pod as it is, or that is being deleted, goes first; the new one
/// follows when it is gone. One without a pod may still get it until all sources were heard.
pub fn needs(pods: &[Static], mirrors: &[Mirror], all_heard: bool) -> Vec<Act> {
    let mut acts = Vec::new();
    let names: BTreeSet<&PodName> = pods.iter().map(|p| &p.pod.name).collect();
    for Static { pod, ending } in pods {
        match mirrors.iter().find(|mirror| mirror.pod.name == pod.name) {
            Some(mirror) if mirror.pod.deletion.is_some() => acts.push(Act::Delete(mirror.clone())),
            Some(mirror) if !mirrors_faithfully(&mirror.pod, pod) => {
                acts.push(Act::Delete(mirror.clone()));
            }
            Some(_) => {}
            None if *ending => {}
            None => acts.push(Act::Create(pod.clone())),
        }
    }
    let alone = |mirror: &&Mirror| all_heard && !names.contains(&mirror.pod.name);
    let orphans = mirrors.iter().filter(alone);
    acts.extend(orphans.map(|mirror| Act::Delete(mirror.clone())));
    acts
}

/// The object to create: the pod, marked as a mirror, owned by its node.
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

    fn mirror(name: &str, hash: &str, deleting: bool) -> Mirror {
        let pod = pod(name).container("c").annotation(ANNOTATION_MIRROR, hash);
        let pod = if deleting { pod.deleted(1, 0) } else { pod };
        Mirror { uid: MirrorUid::new("m"), pod: Arc::new(pod.build()) }
    }

    fn told(pods: &[Static], mirrors: &[Mirror]) -> Vec<String> {
        let word = |act: &Act| match act {
            Act::Create(pod) => format!("create {}", pod.name.name),
            Act::Delete(mirror) => format!("delete {}", mirror.pod.name.name),
        };
        needs(pods, mirrors, true).iter().map(word).collect()
    }

    #[test]
    fn each_static_pod_gets_a_faithful_mirror_and_nothing_else_stays() {
        for (case, pods, mirrors, want) in [
            ("none yet", vec![static_pod("a", "1", false)], vec![], vec!["create a"]),
            ("in order", vec![static_pod("a", "1", false)], vec![mirror("a", "1", false)], vec![]),
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
            assert_eq!(told(&pods, &mirrors), want, "{case}");
        }
        let edited = (static_pod("a", "2", false), mirror("a", "1", false));
        let early = needs(&[edited.0], &[edited.1, mirror("b", "1", false)], false);
        assert_eq!(early.len(), 1, "an orphan may still get its pod");
    }

    #[test]
    fn row_1_a_mirror_is_owned_by_its_node_and_carries_the_hash() {
        let pod = static_pod("web", "abc", false).pod;
        let object = object(&pod, "node-a", "n1");
        assert_eq!(object.metadata.annotations.unwrap()[ANNOTATION_MIRROR], "abc");
        let owners = object.metadata.owner_references.unwrap();
        assert_eq!((owners.len(), owners[0].controller), (1, Some(true)));
        assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("Node", "n1"));
        assert_eq!((object.metadata.uid, object.status), (None, None));
    }
}
