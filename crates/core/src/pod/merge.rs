//! Source merger: turns the updates of all pod sources into changes.
//!
//! Files and URLs deliver their whole set each time, the API watch delivers single objects; both
//! become the same kinds of change, by UID. A change of the status alone is a kind of its own,
//! because it is usually the echo of the agent's own report and needs no work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use podwright_api::annotations::{ANNOTATION_MIRROR, ANNOTATION_SEEN, ANNOTATION_SOURCE};

use super::features::PodFeatures;
use super::{Pod, Source};
use crate::ids::{PodName, PodUid};

/// Update from one source.
#[derive(Clone, Debug)]
pub enum SourceUpdate {
    /// The complete set of its pods.
    All(Vec<v1::Pod>),
    /// One object was added or changed.
    Changed(Box<v1::Pod>),
    /// One object was removed.
    Gone(PodUid),
}

/// Changes, in the order in which they must be handled.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub removed: Vec<Arc<Pod>>,
    pub added: Vec<Arc<Pod>>,
    pub updated: Vec<Arc<Pod>>,
    /// Updated and now marked for deletion. Handled like any update.
    pub deleting: Vec<Arc<Pod>>,
    /// Only the status differs.
    pub reconciled: Vec<Arc<Pod>>,
    /// Objects that cannot run, with the reason.
    pub refused: Vec<RefusedPod>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RefusedPod {
    pub object: v1::ObjectReference,
    pub reason: String,
}

/// The pods of all sources.
#[derive(Debug, Default)]
pub struct SourceMerger {
    features: PodFeatures,
    sources: BTreeMap<Source, BTreeMap<PodUid, Arc<Pod>>>,
    delivered: BTreeSet<Source>,
    /// Refused objects and the reasons, to report each only once.
    refused: BTreeMap<Source, BTreeMap<String, String>>,
}

impl SourceMerger {
    pub fn new(features: PodFeatures) -> Self {
        Self { features, ..Self::default() }
    }

    /// Merges an update. `now` becomes the `config.seen` annotation of new pods.
    pub fn fold(&mut self, source: Source, update: SourceUpdate, now: Timestamp) -> Changes {
        let mut changes = Changes::default();
        let about = match &update {
            SourceUpdate::All(_) => None,
            SourceUpdate::Changed(object) => Some(key(&reference(object))),
            SourceUpdate::Gone(uid) => Some(uid.to_string()),
        };
        match update {
            SourceUpdate::All(objects) => {
                self.delivered.insert(source);
                self.replace(source, objects, now, &mut changes);
            }
            SourceUpdate::Changed(object) => self.put(source, *object, now, &mut changes),
            SourceUpdate::Gone(uid) => {
                let pods = self.sources.entry(source).or_default();
                changes.removed.extend(pods.remove(&uid));
            }
        }
        self.report_refusals_once(source, about.as_deref(), &mut changes.refused);
        changes
    }

    /// Drops refusals that were already reported. `about`: the only object that was delivered, if
    /// not all were.
    fn report_refusals_once(
        &mut self,
        source: Source,
        about: Option<&str>,
        refused: &mut Vec<RefusedPod>,
    ) {
        let known = self.refused.entry(source).or_default();
        let mut before = std::mem::take(known);
        known.extend(refused.iter().map(|r| (key(&r.object), r.reason.clone())));
        refused.retain(|r| before.get(&key(&r.object)) != Some(&r.reason));
        if let Some(about) = about {
            before.remove(about);
            known.append(&mut before);
        }
    }

    /// Whether this source has delivered its complete set at least once.
    pub fn has_delivered(&self, source: Source) -> bool {
        self.delivered.contains(&source)
    }

    fn replace(
        &mut self,
        source: Source,
        objects: Vec<v1::Pod>,
        now: Timestamp,
        changes: &mut Changes,
    ) {
        let mut names = BTreeSet::new();
        let mut kept = BTreeSet::new();
        for object in objects {
            let name = name_of(&object);
            if !names.insert(name.clone()) {
                let reason = format!(
                    "Error validating pod {name} from {} due to duplicate pod name {:?}, ignoring",
                    source.as_str(),
                    name.name
                );
                changes.refused.push(RefusedPod { object: reference(&object), reason });
                continue;
            }
            if let Some(uid) = object.metadata.uid.as_deref() {
                kept.insert(PodUid::new(uid));
            }
            self.put(source, object, now, changes);
        }
        let pods = self.sources.entry(source).or_default();
        let gone: Vec<PodUid> = pods.keys().filter(|uid| !kept.contains(*uid)).cloned().collect();
        changes.removed.extend(gone.iter().filter_map(|uid| pods.remove(uid)));
    }

    fn put(&mut self, source: Source, mut object: v1::Pod, now: Timestamp, changes: &mut Changes) {
        let pods = self.sources.entry(source).or_default();
        let known = object.metadata.uid.as_deref().and_then(|uid| pods.get(uid));
        let seen = known.and_then(|pod| pod.annotation(ANNOTATION_SEEN).map(str::to_owned));
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION_SOURCE.into(), source.as_str().into());
        annotations.insert(ANNOTATION_SEEN.into(), seen.unwrap_or_else(|| rfc3339_nano(now)));
        object.metadata.managed_fields = None;
        self.features.drop_disabled(&mut object);
        let object = Arc::new(object);
        let understood = known.filter(|old| old.unreadable.is_none());
        let (bad, read) = match Pod::from_object(object.clone(), source) {
            Ok(pod) => match pod.unreadable.clone() {
                None => (None, Some(pod)),
                // A pod that was never parsed is added as it is, because it needs a status and may
                // be deleted.
                Some(_) if understood.is_none() => (None, Some(pod)),
                Some(bad) => (Some(bad.to_string()), None),
            },
            Err(bad) => (Some(bad.to_string()), None),
        };
        if let Some(bad) = bad {
            let reason = format!("Error validating pod from {}: {bad}", source.as_str());
            changes.refused.push(RefusedPod { object: reference(&object), reason });
        }
        // The running pod keeps its last parsed spec; a deletion takes effect all the same.
        let kept = || understood.and_then(|old| with_spec_of(&object, old, source));
        let Some(pod) = read.or_else(kept).map(Arc::new) else { return };
        match known {
            None => changes.added.push(pod.clone()),
            Some(old) if differs(&old.object, &pod.object) => {
                let list = if pod.deletion.is_some() {
                    &mut changes.deleting
                } else {
                    &mut changes.updated
                };
                list.push(pod.clone());
            }
            Some(old) if old.object.status != pod.object.status => {
                changes.reconciled.push(pod.clone());
            }
            // No relevant change; the new metadata is stored all the same.
            Some(_) => {}
        }
        pods.insert(pod.uid.clone(), pod);
    }
}

/// The object with the last spec that could be parsed.
fn with_spec_of(object: &v1::Pod, old: &Pod, source: Source) -> Option<Pod> {
    let known = v1::Pod {
        metadata: object.metadata.clone(),
        spec: old.object.spec.clone(),
        status: object.status.clone(),
    };
    Pod::from_object(Arc::new(known), source).ok()
}

/// Key that distinguishes the objects of one source, even invalid ones.
fn key(object: &v1::ObjectReference) -> String {
    let name = || [&object.namespace, &object.name].map(|part| part.clone().unwrap_or_default());
    object.uid.clone().unwrap_or_else(|| name().join("/"))
}

fn reference(object: &v1::Pod) -> v1::ObjectReference {
    let name = name_of(object);
    v1::ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(name.namespace.to_string()),
        name: Some(name.name.to_string()),
        uid: object.metadata.uid.clone(),
        ..v1::ObjectReference::default()
    }
}

fn name_of(object: &v1::Pod) -> PodName {
    let meta = &object.metadata;
    PodName::new(
        meta.namespace.as_deref().unwrap_or("default"),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// Whether anything relevant differs: spec, labels, deletion, and annotations not set locally.
fn differs(old: &v1::Pod, new: &v1::Pod) -> bool {
    old.spec != new.spec
        || old.metadata.labels != new.metadata.labels
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
        || !foreign_annotations(old).eq(foreign_annotations(new))
}

fn foreign_annotations(pod: &v1::Pod) -> impl Iterator<Item = (&String, &String)> {
    const LOCAL: [&str; 3] = [ANNOTATION_SOURCE, ANNOTATION_SEEN, ANNOTATION_MIRROR];
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| !LOCAL.contains(&key.as_str()))
}

/// Nine fractional digits, as in upstream's annotation.
fn rfc3339_nano(time: Timestamp) -> String {
    format!("{time:.9}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(uid: &str, name: &str) -> v1::Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": name, "namespace": "default", "uid": uid },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        }))
        .unwrap()
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|p| &*p.name.name).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn nameless(uid: &str, name: &str) -> v1::Pod {
        let mut object = object(uid, name);
        object.spec.as_mut().unwrap().containers[0].name = String::new();
        object
    }

    fn deleted(mut object: v1::Pod) -> v1::Pod {
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(9));
        object.metadata.deletion_timestamp = Some(time);
        object
    }

    #[test]
    fn api_pod_with_unknown_values_is_added_and_static_one_is_refused() {
        let mut odd = object("u", "web");
        odd.spec.as_mut().unwrap().restart_policy = Some("Sometimes".into());
        for (source, added, refused) in
            [(Source::Api, 1, 0), (Source::File, 0, 1), (Source::Http, 0, 1)]
        {
            let changes =
                SourceMerger::default().fold(source, SourceUpdate::All(vec![odd.clone()]), at(1));
            assert_eq!(
                (changes.added.len(), changes.refused.len()),
                (added, refused),
                "{source:?}"
            );
        }
    }

    #[test]
    fn unreadable_update_of_an_api_pod_keeps_the_last_parsed_spec() {
        let mut merge = SourceMerger::default();
        merge.fold(Source::Api, SourceUpdate::All(vec![object("u", "web")]), at(1));
        let changed = SourceUpdate::Changed(Box::new(nameless("u", "web")));
        let changes = merge.fold(Source::Api, changed, at(2));
        assert_eq!((changes.refused.len(), changes.updated.len()), (1, 0), "it keeps running");
        let changed = SourceUpdate::Changed(Box::new(deleted(nameless("u", "web"))));
        let changes = merge.fold(Source::Api, changed, at(3));
        assert_eq!(names(&changes.deleting), ["web"], "the deletion takes effect");
        assert_eq!(changes.deleting[0].containers.len(), 1);
    }

    #[test]
    fn unreadable_api_pod_is_registered_and_can_be_deleted_and_removed() {
        let mut merge = SourceMerger::default();
        let bad = nameless("u", "web");
        let mut specless = object("v", "db");
        specless.spec = None;
        let changes =
            merge.fold(Source::Api, SourceUpdate::All(vec![bad.clone(), specless]), at(1));
        assert_eq!(names(&changes.added), ["web", "db"]);
        let why = |pod: &Pod| pod.unreadable.clone().unwrap_or_default();
        assert!(why(&changes.added[0]).contains("a container without a name"));
        assert!(why(&changes.added[1]).contains("has no spec"));
        let changes = merge.fold(Source::Api, SourceUpdate::Changed(Box::new(deleted(bad))), at(2));
        assert_eq!(names(&changes.deleting), ["web"]);
        let changes = merge.fold(Source::Api, SourceUpdate::Gone(PodUid::new("u")), at(3));
        assert_eq!(names(&changes.removed), ["web"]);
    }

    #[test]
    fn complete_set_gives_additions_and_removals() {
        let mut merge = SourceMerger::default();
        assert!(!merge.has_delivered(Source::File));
        let first = merge.fold(
            Source::File,
            SourceUpdate::All(vec![object("1", "a"), object("2", "b")]),
            at(1),
        );
        assert_eq!(names(&first.added), ["a", "b"]);
        assert!(merge.has_delivered(Source::File));
        let second = merge.fold(
            Source::File,
            SourceUpdate::All(vec![object("2", "b"), object("3", "c")]),
            at(2),
        );
        assert_eq!((names(&second.added), names(&second.removed)), (vec!["c"], vec!["a"]));
        assert!(second.updated.is_empty() && second.reconciled.is_empty());
    }

    #[test]
    fn sources_do_not_remove_each_others_pods() {
        let mut merge = SourceMerger::default();
        merge.fold(Source::File, SourceUpdate::All(vec![object("1", "a")]), at(1));
        let changes = merge.fold(Source::Api, SourceUpdate::All(vec![object("2", "a")]), at(1));
        assert_eq!((names(&changes.added), changes.removed.len()), (vec!["a"], 0));
    }

    #[test]
    fn each_difference_is_classified_as_upstream_does() {
        type Edit = fn(&mut v1::Pod);
        let cases: [(&str, Edit, [usize; 3]); 7] = [
            ("nothing", |_| {}, [0, 0, 0]),
            ("spec", |p| p.spec.as_mut().unwrap().priority = Some(5), [1, 0, 0]),
            ("label", |p| p.metadata.labels = Some([("a".into(), "b".into())].into()), [1, 0, 0]),
            (
                "annotation",
                |p| p.metadata.annotations = Some([("a".into(), "b".into())].into()),
                [1, 0, 0],
            ),
            ("resourceVersion only", |p| p.metadata.resource_version = Some("9".into()), [0, 0, 0]),
            (
                "deletion",
                |p| {
                    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(9));
                    p.metadata.deletion_timestamp = Some(time);
                },
                [0, 1, 0],
            ),
            (
                "status",
                |p| {
                    p.status =
                        Some(v1::PodStatus { phase: Some("Running".into()), ..Default::default() });
                },
                [0, 0, 1],
            ),
        ];
        for (case, edit, want) in cases {
            let mut merge = SourceMerger::default();
            merge.fold(Source::Api, SourceUpdate::Changed(Box::new(object("1", "a"))), at(1));
            let mut edited = object("1", "a");
            edit(&mut edited);
            let c = merge.fold(Source::Api, SourceUpdate::Changed(Box::new(edited)), at(2));
            let got = [c.updated.len(), c.deleting.len(), c.reconciled.len()];
            assert_eq!(got, want, "{case}");
        }
    }

    #[test]
    fn first_seen_annotation_stays_and_source_annotation_is_overwritten() {
        let mut merge = SourceMerger::default();
        let mut forged = object("1", "a");
        forged.metadata.annotations = Some([(ANNOTATION_SOURCE.into(), "file".into())].into());
        let pod =
            merge.fold(Source::Api, SourceUpdate::Changed(Box::new(forged)), at(1)).added.remove(0);
        assert_eq!(pod.annotation(ANNOTATION_SOURCE), Some("api"));
        assert_eq!(pod.annotation(ANNOTATION_SEEN), Some("1970-01-01T00:00:01.000000000Z"));
        let mut edited = object("1", "a");
        edited.spec.as_mut().unwrap().priority = Some(1);
        let pod = merge
            .fold(Source::Api, SourceUpdate::Changed(Box::new(edited)), at(7))
            .updated
            .remove(0);
        assert_eq!(pod.annotation(ANNOTATION_SEEN), Some("1970-01-01T00:00:01.000000000Z"));
    }

    #[test]
    fn duplicate_name_and_invalid_pod_are_refused_and_reported_once() {
        let mut merge = SourceMerger::default();
        let mut bad = object("3", "c");
        bad.spec.as_mut().unwrap().restart_policy = Some("Sometimes".into());
        let set = vec![object("1", "a"), object("2", "a"), bad.clone()];
        let changes = merge.fold(Source::File, SourceUpdate::All(set.clone()), at(1));
        assert_eq!(names(&changes.added), ["a"]);
        let refused: Vec<_> = changes.refused.iter().map(|r| r.object.name.as_deref()).collect();
        assert_eq!(refused, [Some("a"), Some("c")]);
        let again = merge.fold(Source::File, SourceUpdate::All(set), at(2));
        assert_eq!(again.refused, [], "already reported");
        bad.spec.as_mut().unwrap().restart_policy = Some("Never".into());
        let fixed = merge.fold(Source::File, SourceUpdate::Changed(Box::new(bad.clone())), at(3));
        assert_eq!(names(&fixed.added), ["c"]);
        bad.spec.as_mut().unwrap().restart_policy = Some("Sometimes".into());
        let broken = merge.fold(Source::File, SourceUpdate::Changed(Box::new(bad)), at(4));
        assert_eq!(broken.refused.len(), 1, "reported again after it was valid");
    }
}
