//! Pod sources: manifests and the API.

use podwright_fake_runtime::{Code, Fault, Rpc, Rule};
use podwright_testkit::sim::test_pod::{APP, APP_2, NODE, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::json;

use crate::{assert_invariants, clean, s};

/// UIDs under which the node runs a pod, newest first.
fn node_uids(sim: &Sim, name: &str) -> Vec<String> {
    let calls = sim.fake.calls();
    let made = calls.iter().rev().filter(|call| call.rpc == Rpc::RunPodSandbox);
    let pods = made.filter_map(|call| call.about.pod.as_ref()).filter(|pod| pod.is(name));
    pods.map(|pod| pod.uid.to_string()).collect()
}

#[test]
fn manifest_becomes_a_pod_of_this_node_with_a_mirror() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        let name = format!("web-{NODE}");
        sim.until_ready(&name).await;
        let mirror = sim.record.pod(&name).unwrap();
        let annotations = mirror.metadata.annotations.clone().unwrap();
        let uid = &node_uids(&sim, &name)[0];
        assert_eq!(&annotations["kubernetes.io/config.hash"], uid);
        assert_eq!(&annotations["kubernetes.io/config.mirror"], uid);
        let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Node", NODE));
        let tolerations = mirror.spec.as_ref().unwrap().tolerations.clone().unwrap();
        let no_execute = |t: &k8s_openapi::api::core::v1::Toleration| {
            (t.operator.as_deref(), t.effect.as_deref()) == (Some("Exists"), Some("NoExecute"))
        };
        assert!(tolerations.iter().any(no_execute));
    });
}

#[test]
fn static_pod_uid_follows_from_manifest_and_file_name() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let (manifest, name) =
            (test_pod("web").container("app", APP).manifest(), format!("web-{NODE}"));
        sim.write_manifest("a.json", &manifest);
        sim.until_ready(&name).await;
        let first = node_uids(&sim, &name);
        sim.write_manifest("a.json", &manifest);
        sim.pass(s(30)).await;
        assert_eq!(node_uids(&sim, &name), first, "read again");
        sim.remove_manifest("a.json");
        sim.write_manifest("b.json", &manifest);
        sim.until("another pod", s(60), |sim| node_uids(sim, &name)[0] != first[0]).await;
        assert_invariants(&sim);
    });
}

#[test]
fn manifest_that_needs_the_api_is_refused_and_others_are_not() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let bad = test_pod("bad").container("app", APP).edit(|pod| {
            pod["spec"]["volumes"] = json!([{ "name": "s", "secret": { "secretName": "s" } }]);
        });
        sim.write_manifest("bad.json", &bad.manifest());
        sim.write_manifest("good.json", &test_pod("good").container("app", APP).manifest());
        sim.until_ready(&format!("good-{NODE}")).await;
        assert_eq!(sim.fake.snapshot().sandboxes.len(), 1);
    });
}

#[test]
fn manifest_that_becomes_invalid_keeps_its_pod() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        sim.until_ready(&name).await;
        sim.write_manifest("web.json", "spec: [");
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.snapshot().running(&name), ["app"]);
        sim.remove_manifest("web.json");
        sim.until_gone(&name).await;
    });
}

#[test]
fn empty_list_at_start_makes_the_sources_ready() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let ready = |sim: &Sim| sim.node().pod_index.sources_ready();
        sim.until("every source is ready", s(5), ready).await;
    });
}

#[test]
fn removed_static_pod_keeps_running_until_the_api_is_listed() {
    sim::run(async {
        let mut sim = Sim::new(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        sim.start().await;
        sim.until_ready(&name).await;
        sim.crash().await;
        sim.remove_manifest("web.json");
        sim.api.go_down();
        sim.start().await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.snapshot().running(&name), ["app"]);
        sim.api.come_up();
        sim.until_gone(&name).await;
        sim.until("it is stopped", s(60), |sim| sim.fake.snapshot().running(&name).is_empty())
            .await;
    });
}

#[test]
fn status_only_change_causes_no_runtime_call() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(3)).await;
        let before = sim.fake.count(Rpc::ContainerStatus);
        let note = json!({ "type": "example.com/Noted", "status": "True" });
        assert!(sim.patch_status("web", json!({ "status": { "conditions": [note] } })).await);
        sim.pass(s(1)).await;
        assert_eq!(sim.fake.count(Rpc::ContainerStatus), before);
    });
}

#[test]
fn pod_first_seen_while_being_deleted_is_only_terminated() {
    sim::run(async {
        let mut sim = Sim::new(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        sim.delete("web", None).await;
        sim.start().await;
        sim.until_gone("web").await;
        assert_eq!(sim.fake.count(Rpc::RunPodSandbox), 0);
        assert!(sim.record.of(&uid).last().unwrap().gone);
        clean(&sim, &[]);
    });
}

#[test]
fn uid_recreated_during_termination_starts_once_afterwards() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let (manifest, name) =
            (test_pod("web").container("app", STUBBORN).manifest(), format!("web-{NODE}"));
        sim.write_manifest("web.json", &manifest);
        sim.until_ready(&name).await;
        sim.remove_manifest("web.json");
        sim.pass(s(3)).await;
        sim.write_manifest("web.json", &manifest);
        sim.pass(s(3)).await;
        assert_eq!(node_uids(&sim, &name).len(), 1, "still ending");
        sim.until("the second pod runs", s(60), |sim| node_uids(sim, &name).len() == 2).await;
        sim.pass(s(60)).await;
        let uids = node_uids(&sim, &name);
        assert_eq!((uids.len(), &uids[0]), (2, &uids[1]), "one UID, two lives");
        assert_eq!(sim.fake.snapshot().running(&name), ["app"]);
        assert_invariants(&sim);
    });
}

#[test]
fn static_pods_of_one_name_run_one_after_another_and_unstarted_ones_are_dropped() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        let manifest = |image| test_pod("web").container("app", image).manifest();
        sim.write_manifest("web.json", &manifest(STUBBORN));
        sim.until_ready(&name).await;
        sim.write_manifest("web.json", &manifest(APP));
        sim.pass(s(2)).await;
        sim.write_manifest("web.json", &manifest(APP_2));
        sim.until("the third one runs", s(60), |sim| node_uids(sim, &name).len() == 2).await;
        sim.pass(s(60)).await;
        assert_eq!(node_uids(&sim, &name).len(), 2, "the second was never started");
        let mirror = sim.record.pod(&name).unwrap();
        assert!(record::is_ready(&mirror));
        assert_eq!(mirror.spec.as_ref().unwrap().containers[0].image.as_deref(), Some(APP_2));
        assert_invariants(&sim);
    });
}

#[test]
fn static_pod_and_api_pod_of_one_name_both_run() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.create(&test_pod(&name).container("app", APP)).await;
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        let both = |sim: &Sim| sim.fake.snapshot().running(&name).len() == 2;
        sim.until("both run", s(60), both).await;
        sim.pass(s(60)).await;
        assert!(both(&sim));
        assert!(record::is_ready(&sim.record.pod(&name).unwrap()), "the API pod is reported");
    });
}

#[test]
fn orphan_that_does_not_stop_is_retried_until_it_does() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.crash().await;
        sim.delete("web", Some(0)).await;
        let fault = Fault::Error(Code::Unknown, "not now".into());
        sim.fake.fail(Rule::on(Rpc::StopPodSandbox, fault).first(3));
        sim.start().await;
        sim.until("nothing runs", s(30), |sim| sim.fake.snapshot().running("web").is_empty()).await;
        let tried = |sim: &Sim| sim.fake.count(Rpc::StopPodSandbox) >= 4;
        sim.until("its sandbox is stopped too", s(30), tried).await;
        sim.pass(s(10)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn unknown_pod_in_the_runtime_is_stopped_once_all_sources_are_ready() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.crash().await;
        sim.delete("web", Some(0)).await;
        sim.api.go_down();
        sim.start().await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"], "the API might still list it");
        let reports = sim.record.of(&uid).len();
        sim.api.come_up();
        sim.until("it is stopped", s(60), |sim| sim.fake.snapshot().running("web").is_empty())
            .await;
        let calls = sim.fake.calls();
        let stops = calls.iter().filter(|call| call.rpc == Rpc::StopContainer);
        let graces: Vec<_> = stops.map(|call| call.grace).collect();
        assert!(!graces.is_empty(), "no call stopped it");
        assert!(
            graces.iter().all(|grace| *grace == Some(2)),
            "without a spec the minimum applies: {graces:?}"
        );
        assert_eq!(sim.record.of(&uid).len(), reports, "nothing is reported");
        sim.pass(s(10)).await;
        clean(&sim, &[]);
    });
}
