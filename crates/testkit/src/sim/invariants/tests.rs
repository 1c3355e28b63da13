//! Each invariant is violated by a journal made for it, and not by the valid one beside it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_core::ids::{PodName, PodUid};
use podwright_fake_runtime::{
    About, Call, ContainerState, ContainerView, InstanceChange, InstanceEvent, Outcome, PodRef,
    Rpc, SandboxView, Snapshot,
};
use serde_json::{Value, json};

use super::facts::Facts;
use super::{removal, reports, starts, termination, unmounts};
use crate::sim::record::RecordedPod;
use crate::sim::test_pod::{APP, INIT, JOB, TestPod, test_pod};

use InstanceEvent::{Created, Exited, Removed, StartRequested, Started};

const UID: &str = "u1";

fn pod_ref() -> PodRef {
    PodRef { uid: PodUid::new(UID), name: PodName::new("default", "web") }
}

/// A journal, one second per entry.
struct Written {
    facts: Facts,
    pod: Value,
    seconds: u64,
    calls: u64,
}

fn journal(pod: &TestPod) -> Written {
    let mut pod = pod.value().clone();
    pod["metadata"]["uid"] = UID.into();
    let facts = Facts { recorded_pods: Vec::new(), calls: Vec::new(), changes: Vec::new() };
    Written { facts, pod, seconds: 0, calls: 0 }.shows(json!({}))
}

impl Written {
    fn tick(&mut self) -> Duration {
        self.seconds += 1;
        Duration::from_secs(self.seconds)
    }

    /// The API shows the pod with these fields merged into it.
    fn shows(mut self, fields: Value) -> Self {
        let at = self.tick();
        merge(&mut self.pod, fields);
        let pod: v1::Pod = serde_json::from_value(self.pod.clone()).expect("a pod");
        self.facts.recorded_pods.push(RecordedPod { at, gone: false, pod: Arc::new(pod) });
        self
    }

    fn gone(mut self) -> Self {
        self = self.shows(json!({}));
        self.facts.recorded_pods.last_mut().expect("a pod").gone = true;
        self
    }

    /// The status of one container, as the API shows it.
    fn shows_status(self, name: &str, fields: Value) -> Self {
        let mut status =
            json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0 });
        merge(&mut status, fields);
        self.shows(json!({ "status": { "containerStatuses": [status] } }))
    }

    /// Something happens to an instance, `container/id/sandbox`.
    fn change(mut self, instance: &str, event: InstanceEvent) -> Self {
        let at = self.tick();
        let [container, container_id, sandbox_id] = parts(instance);
        self.facts.changes.push(InstanceChange {
            before: self.calls,
            at,
            pod: pod_ref(),
            container,
            container_id,
            sandbox_id,
            event,
        });
        self
    }

    fn runs(self, instance: &str) -> Self {
        self.change(instance, Created).change(instance, StartRequested).change(instance, Started)
    }

    fn exits(self, instance: &str, code: i32) -> Self {
        self.change(instance, Exited { code })
    }

    fn call(mut self, rpc: Rpc, instance: &str, grace: Option<i64>) -> Self {
        let at = self.tick();
        let [container, container_id, sandbox_id] = parts(instance);
        let named = |text: String| Some(text).filter(|text| !text.is_empty());
        let about = About {
            pod: Some(pod_ref()),
            container: named(container),
            container_id: named(container_id),
            sandbox_id: named(sandbox_id),
            image: None,
        };
        let end = Some((at, Outcome::Failed(podwright_fake_runtime::Code::Unknown)));
        self.facts.calls.push(Call { seq: self.calls, rpc, about, grace, fault: None, at, end });
        self.calls += 1;
        self
    }

    fn stop(self, instance: &str) -> Self {
        self.call(Rpc::StopContainer, instance, Some(10))
    }

    fn waits(mut self, seconds: u64) -> Self {
        self.seconds += seconds;
        self
    }
}

fn parts(instance: &str) -> [String; 3] {
    let mut parts = instance.split('/').map(str::to_owned);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

fn merge(into: &mut Value, fields: Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (key, value) in fields {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value,
    }
}

#[test]
fn second_start_in_spite_of_never_is_a_violation() {
    let never = || test_pod("web").restart("Never").init("first", INIT).container("job", JOB);
    let rule = |code: i32| {
        never().edit(|pod| {
            pod["spec"]["containers"][0]["restartPolicy"] = "Never".into();
            pod["spec"]["containers"][0]["restartPolicyRules"] = json!([
                { "action": "Restart", "exitCodes": { "operator": "In", "values": [code] } }
            ]);
        })
    };
    let twice = |pod: &TestPod, second: &str| {
        journal(pod).runs("job/1/s1").exits("job/1/s1", 7).runs(second).facts
    };
    for (case, facts, want) in [
        ("once", journal(&never()).runs("job/1/s1").exits("job/1/s1", 7).facts, 0),
        ("twice in one sandbox", twice(&never(), "job/2/s1"), 1),
        ("again in a new sandbox", twice(&never(), "job/2/s2"), 1),
        ("may restart", twice(&never().restart("OnFailure"), "job/2/s1"), 0),
        ("a rule matches", twice(&rule(7), "job/2/s1"), 0),
        ("no rule matches", twice(&rule(8), "job/2/s1"), 1),
        (
            "its state was lost",
            journal(&never())
                .runs("job/1/s1")
                .change("job/1/s1", InstanceEvent::StateLost)
                .runs("job/2/s1")
                .facts,
            0,
        ),
        (
            "init container of a new sandbox",
            journal(&never()).runs("first/1/s1").exits("first/1/s1", 0).runs("first/2/s2").facts,
            0,
        ),
        (
            "init container of the same sandbox",
            journal(&never()).runs("first/1/s1").exits("first/1/s1", 1).runs("first/2/s1").facts,
            1,
        ),
    ] {
        let found = starts::restarts_in_spite_of_never(&facts);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn second_start_of_an_ephemeral_container_is_a_violation() {
    let pod = test_pod("web").container("app", APP).edit(|pod| {
        pod["spec"]["ephemeralContainers"] = json!([{ "name": "debug", "image": APP }]);
    });
    let once = || journal(&pod).runs("debug/1/s1").exits("debug/1/s1", 1);
    let lost = || once().change("debug/1/s1", InstanceEvent::RemovedExternally);
    for (case, journal, want) in [
        ("once", once(), 0),
        ("again", once().runs("debug/2/s1"), 1),
        ("again in a new sandbox", once().runs("debug/2/s2"), 1),
        ("its first instance was lost", lost().runs("debug/2/s1"), 0),
    ] {
        let found = starts::repeated_ephemeral_starts(&journal.facts);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn start_before_initialization_is_a_violation() {
    let pod = test_pod("web").init("first", INIT).sidecar("side", APP).container("app", APP);
    let begun = || journal(&pod).runs("first/1/s1");
    for (case, journal, want) in [
        ("in order", begun().exits("first/1/s1", 0).runs("side/2/s1").runs("app/3/s1"), 0),
        ("init container runs", begun().runs("side/2/s1").runs("app/3/s1"), 1),
        ("init failed", begun().exits("first/1/s1", 1).runs("side/2/s1").runs("app/3/s1"), 1),
        ("no sidecar", begun().exits("first/1/s1", 0).runs("app/3/s1"), 1),
        (
            "initialized in another sandbox",
            begun().exits("first/1/s1", 0).runs("side/2/s1").runs("app/3/s2"),
            1,
        ),
    ] {
        let found = starts::starts_before_initialization(&journal.facts);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn sidecar_stopped_before_what_depends_on_it_is_a_violation() {
    let pod = test_pod("web").sidecar("one", APP).sidecar("two", APP).container("app", APP);
    let (one, two, app) = ("one/1/s1", "two/2/s1", "app/3/s1");
    let deleted = json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 10 } });
    let running = || journal(&pod).runs(one).runs(two).runs(app);
    let deleted = || running().shows(deleted.clone());
    let end = |journal: Written| journal.call(Rpc::StopPodSandbox, "//s1", None);
    let app_ended = || deleted().stop(app).exits(app, 0);
    for (case, journal, want) in [
        ("in order", app_ended().stop(two).exits(two, 0).stop(one), 0),
        ("before the regular container ended", deleted().stop(app).stop(two), 1),
        ("first", deleted().stop(two), 1),
        ("in order of start", app_ended().stop(one), 1),
        ("grace period is over", deleted().stop(app).waits(10).stop(two).stop(one), 0),
        ("not the end of the pod", running().stop(two), 0),
        ("restarted afterwards", end(running().stop(two).exits(two, 0).runs("two/4/s1")), 0),
        ("end of a pod that was not deleted", end(running().stop(two)), 1),
    ] {
        let found = termination::sidecars_stopped_too_early(&journal.facts);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn grown_grace_period_of_a_deleted_pod_is_a_violation() {
    let pod = test_pod("web").container("app", APP);
    let stop =
        |journal: Written, grace: i64| journal.call(Rpc::StopContainer, "app/1/s1", Some(grace));
    let running = || journal(&pod).runs("app/1/s1");
    let deleted =
        || running().shows(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    for (case, journal, want) in [
        ("shorter", stop(stop(deleted(), 10), 5), 0),
        ("same", stop(stop(deleted(), 10), 10), 0),
        ("longer", stop(stop(deleted(), 5), 10), 1),
        ("stopped for another reason", stop(stop(running(), 5), 10), 0),
    ] {
        let found = termination::grown_grace_periods(&journal.facts);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn restart_count_other_than_the_number_of_earlier_instances_is_a_violation() {
    let pod = test_pod("web").container("app", APP);
    let report = |journal: Written, id: &str, count: i32| {
        let id = format!("containerd://{id}");
        journal.shows_status("app", json!({ "containerID": id, "restartCount": count })).facts
    };
    let twice = || journal(&pod).runs("app/1/s1").exits("app/1/s1", 1).runs("app/2/s1");
    let unstarted = || {
        let created = journal(&pod).change("app/1/s1", Created);
        created.change("app/1/s1", Removed).runs("app/2/s1")
    };
    let unreached = || {
        let requested = journal(&pod).change("app/1/s1", Created);
        requested.change("app/1/s1", StartRequested).runs("app/2/s1")
    };
    let failed_successor = || {
        let created = journal(&pod).runs("app/1/s1").exits("app/1/s1", 1);
        let created = created.change("app/2/s1", Created).change("app/2/s1", StartRequested);
        created.change("app/2/s1", Removed)
    };
    let lost = || {
        let lost = journal(&pod).runs("app/1/s1");
        lost.change("app/1/s1", InstanceEvent::RemovedExternally).runs("app/2/s1")
    };
    for (case, facts, want) in [
        ("first", report(journal(&pod).runs("app/1/s1"), "1", 0), 0),
        ("first as second", report(journal(&pod).runs("app/1/s1"), "1", 1), 1),
        ("second", report(twice(), "2", 1), 0),
        ("second as first", report(twice(), "2", 0), 1),
        ("second as third", report(twice(), "2", 2), 1),
        ("after one that never began", report(unstarted(), "2", 0), 0),
        ("counts one that never began", report(unstarted(), "2", 1), 0),
        ("counts more than were created", report(unstarted(), "2", 2), 1),
        ("counts a start that arrived nowhere", report(unreached(), "2", 1), 0),
        ("does not count a start that arrived nowhere", report(unreached(), "2", 0), 0),
        ("counts a removed successor that never began", report(failed_successor(), "1", 1), 0),
        ("counts a removed successor twice", report(failed_successor(), "1", 2), 1),
        ("counts a successor that began", report(twice(), "1", 1), 1),
        ("an instance was lost", report(lost(), "2", 0), 0),
    ] {
        let found = reports::wrong_restart_counts(&facts);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn static_pod_that_comes_back_counts_from_zero() {
    let pod = test_pod("web").annotation("kubernetes.io/config.mirror", UID).container("app", APP);
    let again = |removed: Written| {
        let status = json!({ "containerID": "containerd://2", "restartCount": 0 });
        removed.runs("app/2/s2").shows_status("app", status).facts
    };
    let ended = || journal(&pod).runs("app/1/s1").exits("app/1/s1", 0);
    let found = reports::wrong_restart_counts(&again(ended().change("app/1/s1", Removed)));
    assert_eq!(found, [""; 0]);
    assert_eq!(reports::wrong_restart_counts(&again(ended())).len(), 1, "it is the same pod");
}

#[test]
fn changed_terminated_state_is_a_violation() {
    let pod = test_pod("web").container("app", APP);
    let whole = json!({ "containerID": "containerd://1", "exitCode": 1, "reason": "Error",
        "finishedAt": "2026-01-01T00:00:00Z", "message": "why" });
    let with = |field: &str, value: Value| {
        let mut state = whole.clone();
        state[field] = value;
        state
    };
    let shows = |journal: Written, field: &str, state: &Value| {
        journal.shows_status("app", json!({ field: { "terminated": state } }))
    };
    for (case, first, second, want) in [
        ("same", whole.clone(), whole.clone(), 0),
        ("exit code", whole.clone(), with("exitCode", json!(0)), 1),
        ("reason", whole.clone(), with("reason", json!("Completed")), 1),
        ("time", whole.clone(), with("finishedAt", json!("2026-01-01T00:00:01Z")), 1),
        ("message", whole.clone(), with("message", json!("what")), 1),
        ("message lost", whole.clone(), with("message", Value::Null), 1),
        ("message added", with("message", Value::Null), whole.clone(), 0),
        ("another instance", whole.clone(), with("containerID", json!("containerd://2")), 0),
    ] {
        for later in ["state", "lastState"] {
            let shown = shows(shows(journal(&pod), "state", &first), later, &second);
            let found = reports::changed_terminated_states(&shown.facts);
            assert_eq!(found.len(), want, "{case}, {later}: {found:?}");
        }
    }
}

#[test]
fn dead_things_of_a_removed_pod_are_a_violation_after_garbage_collection() {
    let container = ContainerView {
        id: "1".into(),
        sandbox: "s1".into(),
        pod: pod_ref(),
        name: "app".into(),
        attempt: 0,
        state: ContainerState::Exited { code: 0 },
        user: None,
    };
    let sandbox =
        SandboxView { id: "s1".into(), pod: pod_ref(), attempt: 0, ready: false, ips: vec![] };
    let nothing = Snapshot::default();
    let dead = Snapshot { sandboxes: vec![sandbox], containers: vec![container], images: vec![] };
    let pod = test_pod("web").container("app", APP);
    let (soon, late) = (Duration::from_secs(30), Duration::from_secs(3600));
    for (case, journal, snapshot, now, want) in [
        ("removed", journal(&pod).gone(), &nothing, late, 0),
        ("kept", journal(&pod).gone(), &dead, late, 2),
        ("not collected yet", journal(&pod).gone(), &dead, soon, 0),
        ("still in the API", journal(&pod), &dead, late, 0),
    ] {
        let found = removal::kept_too_long(&journal.facts, snapshot, now);
        assert_eq!(found.len(), want, "{case}: {found:?}");
    }
}

#[test]
fn unmount_of_what_is_no_volume_is_a_violation() {
    let pods = Path::new("/var/lib/kubelet/pods");
    for (path, want) in [
        ("/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/scratch", 0),
        ("/var/lib/kubelet/pods/u1/volume-subpaths/map/app/0", 0),
        ("/var/lib/kubelet/pods/u1/volume-subpaths/map/app/data", 1),
        ("/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir", 1),
        ("/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/scratch/below", 1),
        ("/var/lib/kubelet/pods/u1/volumes/../volumes/a", 1),
        ("/var/lib/kubelet/pods/u1", 1),
        ("/mnt/data", 1),
    ] {
        let found = unmounts::outside_of_volumes(pods, [Path::new(path)].into_iter());
        assert_eq!(found.len(), want, "{path}: {found:?}");
    }
}
