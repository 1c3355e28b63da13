//! Files of pods: those that containers share, and those that a crash left unfinished.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use podwright_fake_runtime::{Fault, Rpc, Rule};
use podwright_testkit::sim::test_pod::{APP, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::json;

use super::server::{request_page, server};
use super::{assert_invariants, mounting, s};

#[test]
fn etc_hosts_stays_the_same_file_when_a_container_restarts() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP).container("other", APP)).await;
        sim.until_ready("web").await;
        let file = sim.environment.root().join("pods").join(uid).join("etc-hosts");
        let content = fs::read(&file).unwrap();
        let inode = fs::metadata(&file).unwrap().ino();
        // What a container wrote into it does not stay.
        fs::write(&file, "1.2.3.4 elsewhere\n".repeat(100)).unwrap();
        assert!(sim.fake.kill_container("web", "app", 1));
        sim.until("it was restarted", s(120), |sim| {
            let pod = sim.record.pod("web").unwrap();
            record::containers(&pod).iter().any(|container| container.restart_count > 0)
        })
        .await;
        assert_eq!(fs::read(&file).unwrap(), content);
        assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    });
}

#[test]
fn config_map_directory_left_without_its_mode_gets_it() {
    sim::run(async {
        let mut sim = Sim::new(Options::default()).await;
        sim.make::<ConfigMap>("settings", json!({ "data": { "k": "v" } })).await;
        let web = test_pod("web").container("app", APP).edit(|pod| {
            pod["spec"]["volumes"] = json!([{ "name": "v", "configMap": { "name": "settings" } }]);
            pod["spec"]["containers"][0]["volumeMounts"] =
                json!([{ "name": "v", "mountPath": "/v" }]);
        });
        let uid = sim.create(&web).await;
        // As an agent leaves it that is killed between mkdir and chmod.
        let volumes = sim.environment.root().join("pods").join(uid).join("volumes");
        let directory = volumes.join("kubernetes.io~configmap/v");
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
        sim.start().await;
        sim.until_ready("web").await;
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o777);
    });
}

/// kubernetes#127602
#[test]
fn config_map_edited_while_a_container_with_a_sub_path_starts_does_not_fail_the_start() {
    if !mounting() {
        return;
    }
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.make::<ConfigMap>("settings", json!({ "data": { "k": "old" } })).await;
        let web = test_pod("web").container("app", APP).edit(|pod| {
            pod["spec"]["volumes"] = json!([{ "name": "v", "configMap": { "name": "settings" } }]);
            pod["spec"]["containers"][0]["volumeMounts"] =
                json!([{ "name": "v", "mountPath": "/k", "subPath": "k" }]);
        });
        sim.fake.fail(Rule::on(Rpc::StartContainer, Fault::Delay(s(8))).first(1));
        let uid = sim.create(&web).await;
        let starts = |sim: &Sim| sim.fake.count(Rpc::StartContainer) == 1;
        sim.until("its container starts", s(30), starts).await;
        let maps: Api<ConfigMap> = Api::namespaced(sim.users_client(), "default");
        let edit = Patch::Merge(json!({ "data": { "k": "new" } }));
        maps.patch("settings", &PatchParams::default(), &edit).await.unwrap();
        sim.until_ready("web").await;
        assert_eq!(sim.fake.count(Rpc::StartContainer), 1, "{}", sim.history());
        // The edit is applied when the container has started.
        let volume = sim.environment.root().join("pods").join(uid).join("volumes");
        let file = volume.join("kubernetes.io~configmap/v/k");
        sim.until("the volume is refreshed", s(120), |_| fs::read(&file).unwrap() == b"new").await;
        assert_invariants(&sim);
    });
}

#[test]
fn log_behind_a_link_is_served_only_from_below_the_log_directory() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let log = sim.environment.logs().join(format!("default_web_{uid}/app/0.log"));
        let line = |text: &str| format!("2026-01-01T00:00:00Z stdout F {text}\n");
        let server = server(&sim);
        let read = async |target: PathBuf| {
            fs::write(&target, line(&format!("at {}", target.display()))).unwrap();
            fs::remove_file(&log).unwrap();
            symlink(&target, &log).unwrap();
            request_page(&server, Method::GET, "/containerLogs/default/web/app").await
        };
        let inside = log.with_file_name("kept-by-the-runtime.log");
        let (status, text) = read(inside.clone()).await;
        assert_eq!((status, text), (200, format!("at {}\n", inside.display())));
        let (status, text) = read(sim.environment.path().join("secret")).await;
        assert_eq!(status, 400);
        assert!(text.contains("outside podLogsDir"), "{text}");
    });
}
