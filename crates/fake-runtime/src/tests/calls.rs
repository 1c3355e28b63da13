//! Every call of the client, answered by the fake.

use podwright_core::observed::{Exit, ListedState, State};

use super::*;

#[tokio::test(start_paused = true)]
async fn version_and_conditions_are_reported() {
    let Bed { fake, client } = bed();
    let version = client.version().await.unwrap();
    assert_eq!(
        (version.runtime_name.as_str(), version.runtime_version.as_str()),
        ("containerd", "1.6.20")
    );
    let status = client.status().await.unwrap();
    assert_eq!((status.runtime, status.network, status.features), (Ok(()), Ok(()), None));

    fake.set_network(Condition::not_ready("NetworkPluginNotReady", "cni plugin not initialized"));
    let network = client.status().await.unwrap().network;
    let want = "NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized";
    assert_eq!(network, Err(want.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn list_of_five_thousand_pods_with_long_annotations_is_read() {
    let Bed { fake: _fake, client } = bed();
    for number in 0..5_000 {
        let mut config = sandbox_config(&format!("pod-{number}"), 0);
        config.annotations.insert("long".into(), "x".repeat(4096));
        client.run_sandbox(config, "").await.unwrap();
    }
    assert_eq!(client.list_pods().await.unwrap().pods().count(), 5_000);
}

#[tokio::test(start_paused = true)]
async fn reply_above_the_size_limit_is_refused() {
    let Bed { fake: _fake, client } = bed();
    for count in 1..=8 {
        let pod = format!("pod-{count}");
        let mut config = sandbox_config(&pod, 0);
        config.annotations.insert("long".into(), "x".repeat(9 << 20));
        client.run_sandbox(config, "").await.unwrap();
        let listed = client.list_sandboxes(None).await;
        assert_eq!(listed.is_ok(), count <= 7, "the limit of lists is 64 MiB");
    }
}

#[tokio::test(start_paused = true)]
async fn old_runtime_lacks_newer_features() {
    let old = bed();
    assert_eq!(old.client.cgroup_driver().await.unwrap(), None);
    let (sandbox, _) = old.running("web").await;
    let update = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: sandbox.to_string(),
        ..Default::default()
    };
    assert!(!old.client.update_sandbox_resources(update).await.unwrap());

    let options = FakeOptions { features: Features::containerd_2(), ..Default::default() };
    let new = bed_with(options);
    assert_eq!(new.client.cgroup_driver().await.unwrap(), Some(cri::CgroupDriver::Cgroupfs));
    assert_eq!(new.client.status().await.unwrap().handlers.len(), 1);
    let (sandbox, _) = new.running("web").await;
    let update = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: sandbox.to_string(),
        ..Default::default()
    };
    assert!(new.client.update_sandbox_resources(update).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn pod_cidr_is_stored() {
    let Bed { fake, client } = bed();
    client.set_pod_cidr("10.1.0.0/24").await.unwrap();
    assert_eq!(fake.pod_cidr().as_deref(), Some("10.1.0.0/24"));
}

#[tokio::test(start_paused = true)]
async fn pod_is_observed_as_configured() {
    let bed = bed();
    let sandbox = bed.sandbox("web").await;
    let mut config = container_config("web", "app", 2);
    config.annotations.insert(labels::RESTART_COUNT.into(), "2".into());
    config.mounts = vec![cri::Mount {
        container_path: "/data".into(),
        host_path: "/var/data".into(),
        readonly: true,
        ..Default::default()
    }];
    tokio::time::sleep(seconds(5)).await;
    let id = bed.client.create_container(&sandbox, config, sandbox_config("web", 0)).await.unwrap();
    tokio::time::sleep(seconds(5)).await;
    bed.client.start_container(&id).await.unwrap();

    let (observed, _) = bed.observe("web").await;
    let [seen] = observed.sandboxes.as_slice() else { panic!("{:?}", observed.sandboxes) };
    assert_eq!((seen.id.clone(), seen.ready, seen.attempt), (sandbox, true, 0));
    assert_eq!(seen.ips.as_deref(), Some(["10.88.0.2".parse().unwrap()].as_slice()));
    let [app] = observed.instances.as_slice() else { panic!("{:?}", observed.instances) };
    assert_eq!((app.id.clone(), app.attempt, &*app.container), (id, 2, "app"));
    assert_eq!(app.image, IMAGE);
    assert!(app.image_ref.starts_with("localhost/podwright/app@sha256:"), "{}", app.image_ref);
    assert_eq!(app.log_path.as_deref(), Some("/var/log/pods/default_web_uid-web/app/2.log"));
    assert_eq!((app.mounts[0].host_path.as_str(), app.mounts[0].read_only), ("/var/data", true));
    assert_eq!(app.created.as_second(), 1_767_225_605);
    let State::Running { started } = app.state else { panic!("{:?}", app.state) };
    assert_eq!(started.as_second(), 1_767_225_610);
}

#[tokio::test(start_paused = true)]
async fn host_network_pod_has_no_address() {
    let bed = bed();
    let options =
        cri::NamespaceOption { network: cri::NamespaceMode::Node.into(), ..Default::default() };
    let security =
        cri::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    let config = cri::PodSandboxConfig {
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(security),
            ..Default::default()
        }),
        ..sandbox_config("host", 0)
    };
    // It starts even if the network is not ready.
    bed.fake.set_network(Condition::not_ready("R", "cni plugin not initialized"));
    let id = bed.client.run_sandbox(config, "").await.unwrap();
    let seen = bed.client.sandbox_status(&id).await.unwrap();
    assert_eq!((seen.host_network, seen.ips), (Some(true), Some(vec![])));
    let refused = bed.client.run_sandbox(sandbox_config("web", 0), "").await.unwrap_err();
    assert!(refused.message.ends_with("cni plugin not initialized"), "{refused}");
    // And the failed one left nothing behind, not even its name.
    bed.fake.set_network(Condition::Ready);
    bed.sandbox("web").await;
}

#[tokio::test(start_paused = true)]
async fn addresses_are_released_and_not_assigned_twice() {
    let bed = bed_with(FakeOptions { dual_stack: true, ..Default::default() });
    let first = bed.sandbox("a").await;
    let second = bed.sandbox("b").await;
    let ips = async |id| bed.client.sandbox_status(id).await.unwrap().ips.unwrap();
    let of_first = ips(&first).await;
    assert_eq!(of_first.len(), 2);
    assert_ne!(of_first, ips(&second).await);
    bed.client.stop_sandbox(&first).await.unwrap();
    assert_eq!(ips(&first).await, Vec::<std::net::IpAddr>::new());
}

#[tokio::test(start_paused = true)]
async fn listing_has_all_pods_and_lists_filter_by_label() {
    let bed = bed();
    let (sandbox, container) = bed.running("web").await;
    bed.running("db").await;
    bed.fake.kill_container("db", "app", 0);
    let pods = bed.client.list_pods().await.unwrap();
    let names: Vec<String> = pods.pods().map(|(_, name, _)| name.to_string()).collect();
    assert_eq!(names, ["default/db", "default/web"]);
    let web = pods.get(&PodUid::new("uid-web")).unwrap();
    assert_eq!(web.sandboxes[sandbox.as_str()], ListedState::Running);
    assert_eq!(web.containers[container.as_str()], ListedState::Running);
    let db = pods.get(&PodUid::new("uid-db")).unwrap();
    assert_eq!(db.containers.values().copied().collect::<Vec<_>>(), [ListedState::Exited]);

    let of_web = bed.client.list_containers(Some(&PodUid::new("uid-web"))).await.unwrap();
    assert_eq!(of_web.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), [container.as_str()]);
    let sandboxes = bed.client.list_sandboxes(Some(&PodUid::new("uid-web"))).await.unwrap();
    assert_eq!(sandboxes.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), [sandbox.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn missing_objects_are_not_found_but_can_be_stopped_and_removed() {
    let bed = bed();
    let (sandbox, container) = bed.running("web").await;
    bed.client.stop_container(&container, seconds(2)).await.unwrap();
    bed.client.remove_container(&container).await.unwrap();
    bed.client.stop_sandbox(&sandbox).await.unwrap();
    bed.client.remove_sandbox(&sandbox).await.unwrap();
    assert!(bed.fake.snapshot().has_no_pods());

    bed.client.stop_container(&container, seconds(2)).await.unwrap();
    bed.client.remove_container(&container).await.unwrap();
    bed.client.stop_sandbox(&sandbox).await.unwrap();
    bed.client.remove_sandbox(&sandbox).await.unwrap();
    let kinds = [
        bed.client.sandbox_status(&sandbox).await.unwrap_err().kind,
        bed.client.container_status(&container, sandbox.clone()).await.unwrap_err().kind,
        bed.client.start_container(&container).await.unwrap_err().kind,
        bed.try_create(&sandbox, "web", 0).await.unwrap_err().kind,
        bed.client.exec(&container, vec!["true".into()], None).await.unwrap_err().kind,
    ];
    assert_eq!(kinds, [Kind::NotFound; 5]);
    assert_eq!(bed.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn removing_a_sandbox_removes_its_containers() {
    let bed = bed();
    let (sandbox, _) = bed.running("web").await;
    bed.client.remove_sandbox(&sandbox).await.unwrap();
    assert!(bed.fake.snapshot().has_no_pods());
    // And all names are free.
    bed.running("web").await;
}

#[tokio::test(start_paused = true)]
async fn resources_are_updated_and_reported_if_supported() {
    for (features, told) in [(Features::containerd_1_6(), false), (Features::containerd_2(), true)]
    {
        let bed = bed_with(FakeOptions { features, ..Default::default() });
        let (sandbox, container) = bed.running("web").await;
        for (shares, limit) in [(512, 1 << 20), (0, 2 << 20)] {
            let linux = cri::LinuxContainerResources {
                cpu_shares: shares,
                memory_limit_in_bytes: limit,
                ..Default::default()
            };
            bed.client.update_container_resources(&container, linux).await.unwrap();
        }
        let seen = bed.client.container_status(&container, sandbox).await.unwrap();
        let seen = seen.instance.resources.map(|r| (r.cpu_shares, r.memory_limit));
        assert_eq!(seen, told.then_some((Some(512), Some(2 << 20))));
    }
}

#[tokio::test(start_paused = true)]
async fn commands_follow_the_script() {
    let bed = bed();
    let script = Script::forever()
        .exec(&["cat", "/ready"], ExecReply::exits(1).printing("no"))
        .exec(&["slow"], ExecReply::exits(0).taking(seconds(5)));
    bed.fake.script(IMAGE, script);
    let (_, container) = bed.running("web").await;
    let exec = async |words: &str, timeout| {
        let command = words.split(' ').map(str::to_owned).collect();
        bed.client.exec(&container, command, timeout).await
    };
    let output = exec("cat /ready", Some(seconds(1))).await.unwrap();
    assert_eq!((output.exit_code, output.stdout.as_slice()), (1, b"no".as_slice()));
    assert_eq!(exec("anything", None).await.unwrap().exit_code, 0);
    assert_eq!(exec("slow", None).await.unwrap().exit_code, 0);
    let late = exec("slow", Some(seconds(3))).await.unwrap_err();
    assert_eq!(late.kind, Kind::TimedOut);
    assert_eq!(late.message, "command timed out: \"slow\" timed out after 3s");

    // The test may handle the command instead, and change its handler.
    bed.fake.handle_exec(|call| (call.command == ["slow"]).then(|| ExecReply::exits(7)));
    assert_eq!(exec("slow", Some(seconds(3))).await.unwrap().exit_code, 7);
    assert_eq!(exec("cat /ready", None).await.unwrap().exit_code, 1);
}

#[tokio::test(start_paused = true)]
async fn command_ends_with_its_container() {
    let bed = bed();
    bed.fake
        .script(IMAGE, Script::forever().exec(&["slow"], ExecReply::exits(0).taking(seconds(60))));
    let (_, container) = bed.running("web").await;
    let (client, id) = (bed.client.clone(), container.clone());
    let slow = tokio::spawn(async move { client.exec(&id, vec!["slow".into()], None).await });
    tokio::time::sleep(seconds(1)).await;
    bed.fake.kill_container("web", "app", 1);
    assert_eq!(slow.await.unwrap().unwrap().exit_code, 137);
    let refused = bed.client.exec(&container, vec!["true".into()], None).await.unwrap_err();
    assert!(refused.message.ends_with("container is in CONTAINER_EXITED state"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn usage_grows_while_a_container_runs() {
    let bed = bed();
    let usage = Usage { millicores: 500, memory_bytes: 7, disk_bytes: 9 };
    bed.fake.script(IMAGE, Script::forever().using(usage));
    bed.running("web").await;
    tokio::time::sleep(seconds(10)).await;
    let mut runtime = cri::runtime_service_client::RuntimeServiceClient::new(bed.fake.channel());
    let request = cri::ListPodSandboxStatsRequest { filter: None };
    let pods = runtime.list_pod_sandbox_stats(request).await.unwrap().into_inner().stats;
    let linux = pods[0].linux.as_ref().unwrap();
    let spent = linux.cpu.unwrap().usage_core_nano_seconds.unwrap().value;
    let spent = Duration::from_nanos(spent).as_secs_f64();
    assert!((spent - 5.0).abs() < 0.01, "half a core for ten seconds: {spent}");
    assert_eq!(linux.memory.unwrap().working_set_bytes.unwrap().value, 7);
    let disk = linux.containers[0].writable_layer.as_ref().unwrap();
    assert_eq!(disk.used_bytes.unwrap().value, 9);
}

#[tokio::test(start_paused = true)]
async fn programs_write_logs_and_termination_messages() {
    let directory = tempfile::tempdir().unwrap();
    let inside = |path: &str| directory.path().join(path).to_str().unwrap().to_owned();
    let writes_below = Some(directory.path().to_owned());
    let bed = bed_with(FakeOptions { writes_below, ..Default::default() });
    let script = Script::exits(3, seconds(1)).prints("hello").writes("/dev/termination-log", "bye");
    bed.fake.script(IMAGE, script);
    let pod = cri::PodSandboxConfig { log_directory: inside("logs"), ..sandbox_config("web", 0) };
    let sandbox = bed.client.run_sandbox(pod.clone(), "").await.unwrap();
    let mut config = container_config("web", "app", 0);
    config.mounts = vec![cri::Mount {
        container_path: "/dev/termination-log".into(),
        host_path: inside("last-words"),
        ..Default::default()
    }];
    let id = bed.client.create_container(&sandbox, config, pod).await.unwrap();
    bed.client.start_container(&id).await.unwrap();
    let log = std::fs::read_to_string(inside("logs/app/0.log")).unwrap();
    assert_eq!(log, "2026-01-01T00:00:00.000000000Z stdout F hello\n");
    std::fs::rename(inside("logs/app/0.log"), inside("logs/app/0.log.old")).unwrap();
    bed.client.reopen_log(&id).await.unwrap();
    assert_eq!(std::fs::read_to_string(inside("logs/app/0.log")).unwrap(), "");
    bed.fake.wait_for(|seen| seen.running("web").is_empty()).await;
    assert_eq!(std::fs::read_to_string(inside("last-words")).unwrap(), "bye");
    assert!(bed.client.reopen_log(&id).await.is_err(), "only of a running container");
}

#[tokio::test(start_paused = true)]
async fn exit_reports_its_cause() {
    let ran_for = seconds(3);
    for (script, code, reason) in [
        (Script::exits(0, ran_for), 0, "Completed"),
        (Script::crash_loop(ran_for), 1, "Error"),
        (Script::runs_out_of_memory(ran_for), 137, "OOMKilled"),
    ] {
        let bed = bed();
        bed.fake.script(IMAGE, script);
        bed.running("web").await;
        tokio::time::sleep(seconds(10)).await;
        let (observed, _) = bed.observe("web").await;
        let State::Exited(Exit { code: seen, reason: why, started, finished, .. }) =
            &observed.instances[0].state
        else {
            panic!("{:?}", observed.instances)
        };
        assert_eq!((*seen, why.as_str()), (code, reason));
        let ran = finished.duration_since(*started).as_secs_f64();
        assert!((ran - ran_for.as_secs_f64()).abs() < 0.01, "{reason}: {ran}");
    }
}
