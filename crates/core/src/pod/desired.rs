//! Desired pods of this node, and the mirror pods of the static ones.
//!
//! A static pod exists without the API server; its mirror pod makes it visible in the API. The two
//! have different UIDs. Only this module maps between them, for everything that faces users or the
//! API. It is the counterpart of upstream's pod manager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwright_api::annotations::{ANNOTATION_HASH, ANNOTATION_MIRROR};

use super::Pod;
use crate::ids::{MirrorUid, PodName, PodUid};

/// API object that represents a static pod.
#[derive(Clone, Debug)]
pub struct MirrorPod {
    pub uid: MirrorUid,
    pub pod: Arc<Pod>,
}

/// The UID of a pod in the API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ApiUid {
    Own(PodUid),
    Mirror(MirrorUid),
}

impl ApiUid {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Own(uid) => uid.as_str(),
            Self::Mirror(uid) => uid.as_str(),
        }
    }
}

/// Numbers of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCounts {
    /// Without mirror pods.
    pub pods: usize,
    pub static_pods: usize,
    pub mirrors: usize,
}

/// The desired pods of one name, usually one.
#[derive(Debug, Default)]
struct SameName {
    /// The pod that the name stands for.
    owner: Option<PodUid>,
    pods: BTreeSet<PodUid>,
}

#[derive(Debug, Default)]
pub struct DesiredPods {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    static_pods: BTreeSet<PodUid>,
    names: BTreeMap<PodName, SameName>,
    mirrors: BTreeMap<MirrorUid, MirrorPod>,
    mirror_names: BTreeMap<PodName, MirrorUid>,
}

/// Whether an API object is a mirror pod.
pub fn is_mirror(pod: &Pod) -> bool {
    !pod.is_static() && pod.annotation(ANNOTATION_MIRROR).is_some()
}

impl DesiredPods {
    /// Stores a pod or a mirror pod.
    pub fn put(&mut self, pod: Arc<Pod>) {
        if is_mirror(&pod) {
            let uid = MirrorUid::new(pod.uid.as_str());
            self.mirror_names.insert(pod.name.clone(), uid.clone());
            self.mirrors.insert(uid.clone(), MirrorPod { uid, pod });
        } else {
            // Of two static pods with one name the first one runs and has the mirror pod.
            let first = self.by_name(&pod.name).filter(|other| other.is_static());
            let takes_name = first.is_none() || !pod.is_static();
            let same_name = self.names.entry(pod.name.clone()).or_default();
            same_name.pods.insert(pod.uid.clone());
            if takes_name {
                same_name.owner = Some(pod.uid.clone());
            }
            if pod.is_static() {
                self.static_pods.insert(pod.uid.clone());
            }
            self.pods.insert(pod.uid.clone(), pod);
        }
    }

    pub fn remove(&mut self, pod: &Pod) {
        if is_mirror(pod) {
            let uid = MirrorUid::new(pod.uid.as_str());
            self.mirrors.remove(&uid);
            if self.mirror_names.get(&pod.name) == Some(&uid) {
                self.mirror_names.remove(&pod.name);
            }
        } else {
            self.pods.remove(&pod.uid);
            self.static_pods.remove(&pod.uid);
            let Some(same_name) = self.names.get_mut(&pod.name) else { return };
            same_name.pods.remove(&pod.uid);
            // A successor with the same name may already be stored.
            if same_name.owner.as_ref() == Some(&pod.uid) {
                // A static pod and an API pod may have one name.
                let mut others = same_name.pods.iter().filter_map(|uid| self.pods.get(uid));
                let next = others.find(|other| pod.is_static() || other.is_static());
                same_name.owner = next.map(|next| next.uid.clone());
            }
            if same_name.pods.is_empty() {
                self.names.remove(&pod.name);
            }
        }
    }

    /// The desired pods, without mirror pods.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// The static pods, by UID.
    pub fn static_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.static_pods.iter().filter_map(|uid| self.pods.get(uid))
    }

    /// The number of pods, of static ones among them, and of mirror pods.
    pub fn counts(&self) -> PodCounts {
        PodCounts {
            pods: self.pods.len(),
            static_pods: self.static_pods.len(),
            mirrors: self.mirrors.len(),
        }
    }

    pub fn by_uid(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.pods.get(uid)
    }

    pub fn by_name(&self, name: &PodName) -> Option<&Arc<Pod>> {
        self.pods.get(self.names.get(name)?.owner.as_ref()?)
    }

    pub fn mirrors(&self) -> impl Iterator<Item = &MirrorPod> {
        self.mirrors.values()
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<&MirrorPod> {
        if !pod.is_static() {
            return None;
        }
        self.mirrors.get(self.mirror_names.get(&pod.name)?)
    }

    /// The static pod that a mirror pod represents.
    pub fn static_pod_of(&self, mirror: &Pod) -> Option<&Arc<Pod>> {
        self.by_name(&mirror.name).filter(|pod| pod.is_static())
    }

    /// The UID to which a status is sent; `None` while a static pod has no mirror pod.
    pub fn api_uid(&self, uid: &PodUid) -> Option<ApiUid> {
        let pod = self.pods.get(uid)?;
        if pod.is_static() {
            // Of two static pods with one name only the first has the mirror pod.
            let named = self.by_name(&pod.name).filter(|named| named.is_static());
            let mirror =
                self.mirror_of(pod).filter(|_| named.is_none_or(|named| named.uid == *uid));
            return mirror.map(|m| ApiUid::Mirror(m.uid.clone()));
        }
        Some(ApiUid::Own(uid.clone()))
    }

    /// The pod that a UID from outside means: users name the mirror pod of a static pod.
    pub fn resolve(&self, uid: &str) -> Option<&Arc<Pod>> {
        match self.mirrors.get(uid) {
            Some(mirror) => self.static_pod_of(&mirror.pod),
            None => self.pods.get(uid),
        }
    }
}

/// Whether a mirror pod matches the current manifest of its static pod.
pub fn mirror_is_current(mirror: &Pod, pod: &Pod) -> bool {
    mirror.name == pod.name
        && mirror.annotation(ANNOTATION_MIRROR) == pod.annotation(ANNOTATION_HASH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Source;

    fn pod(uid: &str, source: Source, mirror_of: Option<&str>) -> Arc<Pod> {
        let annotations = match mirror_of {
            Some(hash) => serde_json::json!({ ANNOTATION_MIRROR: hash }),
            None => serde_json::json!({ ANNOTATION_HASH: uid }),
        };
        let object = serde_json::json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": uid, "annotations": annotations },
            "spec": { "containers": [{ "name": "c" }] },
        });
        Arc::new(Pod::parse(serde_json::from_value(object).unwrap(), source).unwrap())
    }

    #[test]
    fn static_pod_and_mirror_resolve_to_each_other() {
        let (own, mirror) = (pod("s1", Source::File, None), pod("m1", Source::Api, Some("s1")));
        let mut desired = DesiredPods::default();
        desired.put(own.clone());
        assert_eq!(desired.api_uid(&own.uid), None, "no mirror, no status to send");
        desired.put(mirror.clone());
        assert_eq!(desired.api_uid(&own.uid), Some(ApiUid::Mirror(MirrorUid::new("m1"))));
        assert_eq!(desired.resolve("m1").unwrap().uid, own.uid);
        assert_eq!(desired.resolve("s1").unwrap().uid, own.uid);
        assert_eq!(desired.pods().count(), 1, "a mirror pod is not a pod of this node");
        assert!(mirror_is_current(&mirror, &own));
        desired.remove(&own);
        assert!(desired.resolve("m1").is_none());
    }

    #[test]
    fn mirror_of_an_older_manifest_is_not_current() {
        let (own, mirror) = (pod("s2", Source::File, None), pod("m1", Source::Api, Some("s1")));
        assert!(!mirror_is_current(&mirror, &own));
    }

    #[test]
    fn name_and_mirror_belong_to_the_first_of_two_static_pods() {
        let (file, url) = (pod("s1", Source::File, None), pod("s2", Source::Http, None));
        let mut desired = DesiredPods::default();
        desired.put(file.clone());
        desired.put(url.clone());
        assert_eq!(desired.by_name(&file.name).unwrap().uid, file.uid);
        desired.put(pod("m1", Source::Api, Some("s1")));
        assert_eq!(desired.resolve("m1").unwrap().uid, file.uid);
        desired.remove(&file);
        assert_eq!(
            desired.by_name(&url.name).unwrap().uid,
            url.uid,
            "the name passes to the next one"
        );
    }

    #[test]
    fn pod_that_replaced_another_of_its_name_keeps_the_name() {
        let (old, new) = (pod("u1", Source::Api, None), pod("u2", Source::Api, None));
        let mut desired = DesiredPods::default();
        desired.put(old.clone());
        desired.put(new.clone());
        desired.remove(&old);
        assert_eq!(desired.by_name(&new.name).unwrap().uid, new.uid);
    }
}
