//! Desired pods of this node, and the mirror pods of the static ones.
//!
//! A static pod exists without the API server; its mirror pod makes it visible in the API. The two
//! have different UIDs. Only this module maps between them, for everything that faces users or the
//! API. It is the counterpart of upstream's pod manager.

use std::collections::BTreeMap;
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

#[derive(Debug, Default)]
pub struct DesiredPods {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    names: BTreeMap<PodName, PodUid>,
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
            if first.is_none() || !pod.is_static() {
                self.names.insert(pod.name.clone(), pod.uid.clone());
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
            // A successor with the same name may already be stored.
            if self.names.get(&pod.name) == Some(&pod.uid) {
                self.names.remove(&pod.name);
                // A static pod and an API pod may have one name.
                let mut others = self.pods.values().filter(|other| other.name == pod.name);
                if let Some(next) = others.find(|other| pod.is_static() || other.is_static()) {
                    self.names.insert(next.name.clone(), next.uid.clone());
                }
            }
        }
    }

    /// The desired pods, without mirror pods.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    pub fn by_uid(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.pods.get(uid)
    }

    pub fn by_name(&self, name: &PodName) -> Option<&Arc<Pod>> {
        self.pods.get(self.names.get(name)?)
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
