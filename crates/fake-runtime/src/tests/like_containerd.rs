//! Comparison of the fake with a real containerd: the same calls, in the same order, must give the
//! same replies.
//!
//! The transcript was recorded from containerd 1.6.20. A case that fails there is a wrong case.

use podwright_core::observed::State;
use podwright_proto::cri::runtime_service_client::RuntimeServiceClient;
use podwright_testkit::report;

use super::*;
use podwright_cri::Endpoint;

const RECORDED: &str = r#"
events: Unimplemented method GetContainerEvents not implemented
checkpoint: Unimplemented method CheckpointContainer not implemented
run: ok
run again: Unknown failed to reserve sandbox name "web_default_uid-web_0": name "web_default_uid-web_0" is reserved for "S0"
sandbox: ready=true ips=0
create: ok
create again: Unknown failed to reserve container name "app_web_default_uid-web_0": name "app_web_default_uid-web_0" is reserved for "C0"
create without its image: NotFound failed to resolve image "localhost/none:1": not found
exec in created: Unknown failed to exec in container: container is in CONTAINER_CREATED state
stop created: ok
reopen log of created: Unknown container is not running
start: ok
start again: Unknown failed to set starting state for container "C0": container is in CONTAINER_RUNNING state
exec too long: DeadlineExceeded failed to exec in container: timeout 1s exceeded: context deadline exceeded
status of nothing: NotFound an error occurred when try to find container "nope": not found
status of no sandbox: NotFound an error occurred when try to find sandbox: not found
start nothing: NotFound an error occurred when try to find container "nope": not found
exec in nothing: NotFound failed to exec in container: failed to find container "nope" in store: not found
create in nothing: NotFound failed to find sandbox id "nope": not found
stop nothing: NotFound an error occurred when try to find container "nope": not found
stop no sandbox: NotFound an error occurred when try to find sandbox "nope": not found
remove nothing: ok
remove no sandbox: ok
stop: ok
exit: 143 Error ""
start exited: Unknown failed to set starting state for container "C0": container is in CONTAINER_EXITED state
exec in exited: Unknown failed to exec in container: container is in CONTAINER_EXITED state
reopen log of exited: Unknown container is not running
create bad: ok
start bad: Unknown failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "/nope": stat /nope: no such file or directory: unknown
exit of bad: 128 StartError "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"/nope\": stat /nope: no such file or directory: unknown"
create late: ok
create killed: ok
start killed: ok
stop sandbox: ok
exit of killed: 137 Error ""
start in stopped: Unknown sandbox container "S0" is not running
exit of late: 128 StartError "sandbox container \"S0\" is not running"
create in stopped: NotFound failed to get sandbox container task: no running task found: task S0 not found: not found
stopped sandbox: ready=false ips=0
run while the stopped one is there: Unknown failed to reserve sandbox name "web_default_uid-web_0": name "web_default_uid-web_0" is reserved for "S0"
run next attempt: ok
create while the old one is there: Unknown failed to reserve container name "app_web_default_uid-web_0": name "app_web_default_uid-web_0" is reserved for "C0"
remove stopped sandbox: ok
remove ready sandbox: ok
left: 0 pods
the event stream opened with the first event
told of: S0 C0 C0 K0 K0 S0 S1 S1
"#;

const BUSYBOX: &str = "localhost/check/busybox:1";

#[tokio::test(start_paused = true)]
async fn fake_replies_like_containerd() {
    let bed = bed();
    bed.fake.images().add(BUSYBOX).unwrap();
    bed.fake.choose_scripts(|config| {
        if config.command == ["/nope"] {
            return Some(Script::refuses_to_start(
                "failed to create shim task: OCI runtime create failed: runc create failed: \
                 unable to start container process: exec: \"/nope\": stat /nope: no such file or \
                 directory: unknown",
            ));
        }
        let asked = OnTerm::Exits { after: Duration::ZERO, code: 143 };
        let slow = ExecReply::exits(0).taking(seconds(30));
        Some(Script::forever().on_sigterm(asked).exec(&["sleep", "30"], slow))
    });
    let log = transcript(&bed.client, "/nowhere").await;
    assert_eq!(log, RECORDED.trim(), "seed {}", FakeOptions::default().seed);
}

/// `PODWRIGHT_CONTAINERD_SOCKET` is that of a containerd 1.6 of the test's own, which has the image
/// `localhost/check/busybox:1` and uses it for sandboxes too.
#[tokio::test]
async fn containerd_replies_as_recorded() {
    let Ok(socket) = std::env::var("PODWRIGHT_CONTAINERD_SOCKET") else {
        return report::skipped("PODWRIGHT_CONTAINERD_SOCKET names no containerd");
    };
    let endpoint: Endpoint = socket.parse().unwrap();
    let client = Client::new(&endpoint, Timeouts { call: seconds(20) });
    let logs = tempfile::tempdir().unwrap();
    assert_eq!(transcript(&client, logs.path().to_str().unwrap()).await, RECORDED.trim());
}

/// Requests and replies, with ids replaced by names.
struct Transcript {
    lines: Vec<String>,
    names: Vec<(String, &'static str)>,
}

impl Transcript {
    fn line(&mut self, line: String) {
        let named = |line: String, (id, name): &(String, &str)| line.replace(id.as_str(), name);
        self.lines.push(self.names.iter().fold(line, named));
    }

    fn note<T>(&mut self, what: &str, result: Result<T, tonic::Status>) -> Option<T> {
        match result {
            Ok(value) => {
                self.line(format!("{what}: ok"));
                Some(value)
            }
            Err(status) => {
                self.line(format!("{what}: {:?} {}", status.code(), status.message()));
                None
            }
        }
    }
}

async fn transcript(client: &Client, logs: &str) -> String {
    let listener = tokio::spawn(listen(client.clone()));
    tokio::time::sleep(seconds(1)).await;
    let mut log = Transcript { lines: Vec::new(), names: Vec::new() };
    let mut raw = Raw(RuntimeServiceClient::new(client.channel()));
    log.note("events", raw.0.get_container_events(cri::GetEventsRequest {}).await);
    let checkpoint = cri::CheckpointContainerRequest::default();
    log.note("checkpoint", raw.0.checkpoint_container(checkpoint).await);
    play(&mut log, client, &mut raw, logs).await;
    let (opened, ids) = listener.await.unwrap();
    if opened >= seconds(1) {
        log.line("the event stream opened with the first event".into());
    }
    log.line(format!("told of: {}", ids.join(" ")));
    log.lines.join("\n")
}

/// When the event stream opened, and its events.
async fn listen(client: Client) -> (Duration, Vec<String>) {
    let began = tokio::time::Instant::now();
    let mut hints = client.hints("containerd").await.unwrap();
    let opened = began.elapsed();
    let mut ids = Vec::new();
    while let Ok(Some(Ok(hint))) = tokio::time::timeout(seconds(5), hints.next()).await {
        ids.push(match hint {
            podwright_cri::Hint::Id(id) | podwright_cri::Hint::Ended(id) => id,
            podwright_cri::Hint::Pod(uid) => uid.to_string(),
        });
    }
    (opened, ids)
}

async fn play(log: &mut Transcript, client: &Client, raw: &mut Raw, logs: &str) {
    let sandbox = log.note("run", raw.run(logs, 0).await).unwrap();
    log.names.push((sandbox.clone(), "S0"));
    log.note("run again", raw.run(logs, 0).await);
    log.line(seen_sandbox("sandbox", client, &sandbox).await);
    let sleep = ["/bin/sleep", "1000"];
    let app = log.note("create", raw.create(&sandbox, logs, "app", BUSYBOX, &sleep).await).unwrap();
    log.names.push((app.clone(), "C0"));
    log.note("create again", raw.create(&sandbox, logs, "app", BUSYBOX, &sleep).await);
    let absent = raw.create(&sandbox, logs, "other", "localhost/none:1", &sleep).await;
    log.note("create without its image", absent);
    log.note("exec in created", raw.exec(&app, &["true"]).await);
    log.note("stop created", raw.stop(&app, 2).await);
    log.note("reopen log of created", raw.reopen(&app).await);
    log.note("start", raw.start(&app).await);
    log.note("start again", raw.start(&app).await);
    log.note("exec too long", raw.exec(&app, &["sleep", "30"]).await);

    log.note("status of nothing", raw.status("nope").await);
    log.note("status of no sandbox", raw.sandbox_status("nope").await);
    log.note("start nothing", raw.start("nope").await);
    log.note("exec in nothing", raw.exec("nope", &["true"]).await);
    log.note("create in nothing", raw.create("nope", logs, "x", BUSYBOX, &sleep).await);
    log.note("stop nothing", raw.stop("nope", 2).await);
    log.note("stop no sandbox", raw.stop_sandbox("nope").await);
    log.note("remove nothing", raw.remove("nope").await);
    log.note("remove no sandbox", raw.remove_sandbox("nope").await);

    log.note("stop", raw.stop(&app, 2).await);
    log.line(exit("exit", client, &app).await);
    log.note("start exited", raw.start(&app).await);
    log.note("exec in exited", raw.exec(&app, &["true"]).await);
    log.note("reopen log of exited", raw.reopen(&app).await);
    let bad = raw.create(&sandbox, logs, "bad", BUSYBOX, &["/nope"]).await;
    let bad = log.note("create bad", bad).unwrap();
    log.note("start bad", raw.start(&bad).await);
    log.line(exit("exit of bad", client, &bad).await);

    let late = raw.create(&sandbox, logs, "late", BUSYBOX, &sleep).await;
    let late = log.note("create late", late).unwrap();
    let killed = raw.create(&sandbox, logs, "killed", BUSYBOX, &sleep).await;
    let killed = log.note("create killed", killed).unwrap();
    log.names.push((killed.clone(), "K0"));
    log.note("start killed", raw.start(&killed).await);
    log.note("stop sandbox", raw.stop_sandbox(&sandbox).await);
    log.line(exit("exit of killed", client, &killed).await);
    log.note("start in stopped", raw.start(&late).await);
    log.line(exit("exit of late", client, &late).await);
    log.note("create in stopped", raw.create(&sandbox, logs, "x", BUSYBOX, &sleep).await);
    log.line(seen_sandbox("stopped sandbox", client, &sandbox).await);
    log.note("run while the stopped one is there", raw.run(logs, 0).await);
    let next = log.note("run next attempt", raw.run(logs, 1).await).unwrap();
    log.names.push((next.clone(), "S1"));
    let again = raw.create(&next, logs, "app", BUSYBOX, &sleep).await;
    log.note("create while the old one is there", again);
    log.note("remove stopped sandbox", raw.remove_sandbox(&sandbox).await);
    log.note("remove ready sandbox", raw.remove_sandbox(&next).await);
    log.line(format!("left: {} pods", client.list_pods().await.unwrap().pods().count()));
}

async fn seen_sandbox(what: &str, client: &Client, id: &str) -> String {
    let seen = client.sandbox_status(&SandboxId::new(id)).await.unwrap();
    format!("{what}: ready={} ips={}", seen.ready, seen.ips.unwrap_or_default().len())
}

async fn exit(what: &str, client: &Client, id: &str) -> String {
    let seen = client.container_status(&ContainerId::new(id), SandboxId::new("")).await.unwrap();
    match seen.instance.state {
        State::Exited(exit) => format!("{what}: {} {} {:?}", exit.code, exit.reason, exit.message),
        other => format!("{what}: {other:?}"),
    }
}

/// The calls themselves, with the runtime's own codes and messages.
struct Raw(RuntimeServiceClient<Channel>);

impl Raw {
    async fn run(&mut self, logs: &str, attempt: u32) -> Result<String, tonic::Status> {
        let request = cri::RunPodSandboxRequest {
            config: Some(host_network(logs, attempt)),
            runtime_handler: String::new(),
        };
        Ok(self.0.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id)
    }

    async fn create(
        &mut self,
        sandbox: &str,
        logs: &str,
        name: &str,
        image: &str,
        command: &[&str],
    ) -> Result<String, tonic::Status> {
        let config = cri::ContainerConfig {
            image: Some(cri::ImageSpec { image: image.into(), ..Default::default() }),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            ..container_config("web", name, 0)
        };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(host_network(logs, 0)),
        };
        Ok(self.0.create_container(request).await?.into_inner().container_id)
    }

    async fn start(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::StartContainerRequest { container_id: id.into() };
        self.0.start_container(request).await.map(drop)
    }

    async fn stop(&mut self, id: &str, timeout: i64) -> Result<(), tonic::Status> {
        let request = cri::StopContainerRequest { container_id: id.into(), timeout };
        self.0.stop_container(request).await.map(drop)
    }

    async fn remove(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::RemoveContainerRequest { container_id: id.into() };
        self.0.remove_container(request).await.map(drop)
    }

    async fn status(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::ContainerStatusRequest { container_id: id.into(), verbose: false };
        self.0.container_status(request).await.map(drop)
    }

    async fn exec(&mut self, id: &str, command: &[&str]) -> Result<(), tonic::Status> {
        let cmd = command.iter().map(|&word| word.to_owned()).collect();
        let request = cri::ExecSyncRequest { container_id: id.into(), cmd, timeout: 1 };
        self.0.exec_sync(request).await.map(drop)
    }

    async fn reopen(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::ReopenContainerLogRequest { container_id: id.into() };
        self.0.reopen_container_log(request).await.map(drop)
    }

    async fn stop_sandbox(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        self.0.stop_pod_sandbox(request).await.map(drop)
    }

    async fn remove_sandbox(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        self.0.remove_pod_sandbox(request).await.map(drop)
    }

    async fn sandbox_status(&mut self, id: &str) -> Result<(), tonic::Status> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        self.0.pod_sandbox_status(request).await.map(drop)
    }
}

/// In the host's network, so that a real runtime needs no network plugin.
fn host_network(logs: &str, attempt: u32) -> cri::PodSandboxConfig {
    let options =
        cri::NamespaceOption { network: cri::NamespaceMode::Node.into(), ..Default::default() };
    let security =
        cri::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    let linux = cri::LinuxPodSandboxConfig {
        cgroup_parent: "/podwright-check".into(),
        security_context: Some(security),
        ..Default::default()
    };
    cri::PodSandboxConfig {
        log_directory: logs.into(),
        linux: Some(linux),
        ..sandbox_config("web", attempt)
    }
}
