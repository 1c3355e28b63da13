//! Which pods this node should have, and which API objects mirror the static ones.
//!
//! A static pod exists without the API server; its mirror is an API object so that people see it.
//! The two have different UIDs, and only this module knows which belong together: everything that
//! talks to users or to the API translates here.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ANNOTATION_HASH, ANNOTATION_MIRROR, Pod};
use crate::ids::{MirrorUid, PodName, PodUid};

/// An API object that stands for a static pod.
#[derive(Clone, Debug)]
pub struct Mirror {
    pub uid: MirrorUid,
    pub pod: Arc<Pod>,
}

/// The UID under which the API knows a pod.
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
pub struct Registry {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    names: BTreeMap<PodName, PodUid>,
    mirrors: BTreeMap<MirrorUid, Mirror>,
    mirror_names: BTreeMap<PodName, MirrorUid>,
}

/// Whether an object of the API stands for a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    !pod.is_static() && pod.annotation(ANNOTATION_MIRROR).is_some()
}

impl Registry {
    /// Stores a pod or a mirror, whichever it is.
    pub fn put(&mut self, pod: Arc<Pod>) {
        if is_mirror(&pod) {
            let uid = MirrorUid::new(pod.uid.as_str());
            self.mirror_names.insert(pod.name.clone(), uid.clone());
            self.mirrors.insert(uid.clone(), Mirror { uid, pod });
        } else {
            self.names.insert(pod.name.clone(), pod.uid.clone());
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
            // A successor of the same name may be here already.
            if self.names.get(&pod.name) == Some(&pod.uid) {
                self.names.remove(&pod.name);
            }
        }
    }

    /// Mirrors are not pods of this node.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    pub fn by_uid(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.pods.get(uid)
    }

    pub fn by_name(&self, name: &PodName) -> Option<&Arc<Pod>> {
        self.pods.get(self.names.get(name)?)
    }

    pub fn mirrors(&self) -> impl Iterator<Item = &Mirror> {
        self.mirrors.values()
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<&Mirror> {
        if !pod.is_static() {
            return None;
        }
        self.mirrors.get(self.mirror_names.get(&pod.name)?)
    }

    /// The static pod a mirror stands for.
    pub fn behind(&self, mirror: &Pod) -> Option<&Arc<Pod>> {
        self.by_name(&mirror.name).filter(|pod| pod.is_static())
    }

    /// The UID a status must be sent to; `None` while a static pod has no mirror.
    pub fn api_uid(&self, uid: &PodUid) -> Option<ApiUid> {
        let pod = self.pods.get(uid)?;
        if pod.is_static() {
            return self.mirror_of(pod).map(|m| ApiUid::Mirror(m.uid.clone()));
        }
        Some(ApiUid::Own(uid.clone()))
    }

    /// The pod that a UID from outside means: users name mirrors when they mean static pods.
    pub fn resolve(&self, uid: &str) -> Option<&Arc<Pod>> {
        match self.mirrors.get(uid) {
            Some(mirror) => self.behind(&mirror.pod),
            None => self.pods.get(uid),
        }
    }
}

/// Whether a mirror still shows its static pod as it is.
pub fn mirrors_faithfully(mirror: &Pod, pod: &Pod) -> bool {
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
    fn a_static_pod_and_its_mirror_translate_both_ways() {
        let (own, mirror) = (pod("s1", Source::File, None), pod("m1", Source::Api, Some("s1")));
        let mut registry = Registry::default();
        registry.put(own.clone());
        assert_eq!(registry.api_uid(&own.uid), None, "no mirror, no status to send");
        registry.put(mirror.clone());
        assert_eq!(registry.api_uid(&own.uid), Some(ApiUid::Mirror(MirrorUid::new("m1"))));
        assert_eq!(registry.resolve("m1").unwrap().uid, own.uid);
        assert_eq!(registry.resolve("s1").unwrap().uid, own.uid);
        assert_eq!(registry.pods().count(), 1, "a mirror is not a pod of this node");
        assert!(mirrors_faithfully(&mirror, &own));
        registry.remove(&own);
        assert!(registry.resolve("m1").is_none());
    }

    #[test]
    fn a_mirror_of_an_older_manifest_is_not_faithful() {
        let (own, mirror) = (pod("s2", Source::File, None), pod("m1", Source::Api, Some("s1")));
        assert!(!mirrors_faithfully(&mirror, &own));
    }

    #[test]
    fn a_pod_that_replaced_another_of_its_name_keeps_the_name() {
        let (old, new) = (pod("u1", Source::Api, None), pod("u2", Source::Api, None));
        let mut registry = Registry::default();
        registry.put(old.clone());
        registry.put(new.clone());
        registry.remove(&old);
        assert_eq!(registry.by_name(&new.name).unwrap().uid, new.uid);
    }
}
