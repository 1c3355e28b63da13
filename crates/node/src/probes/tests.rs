//! The prober on a runtime in memory, under paused time. Nobody else works on the pod here: the
//! test starts its container and looks at it, as the worker would.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_core::builders;
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::labels;
use podwright_core::lifecycle::{Kill, Lifecycle, Request};
use podwright_core::status::manager::Remains;
use podwright_cri::fake::{ExecReply, Fake, FakeOptions, Rpc};
use podwright_proto::cri::{
    ContainerConfig, ContainerMetadata, ImageSpec, PodSandboxConfig, PodSandboxMetadata,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::events::Occurrence;
use crate::pods::Directory;

const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    fake: Fake,
    pod: Arc<Pod>,
    cell: Arc<PodCell>,
    means: Arc<Means>,
    instance: ContainerId,
    events: mpsc::Receiver<Occurrence>,
    prober: JoinHandle<()>,
    /// Whether commands succeed.
    healthy: Arc<AtomicBool>,
}

impl Scene {
    /// A pod whose container runs and has these probes.
    async fn set(probes: Value) -> Self {
        let pod = Arc::new(builders::pod("web").container_with("app", probes).build());
        let fake = Fake::start(FakeOptions::default());
        fake.images().add("i").unwrap();
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let metrics = Arc::new(Metrics::default());
        let (recorder, events) = Recorder::new(clock.clone());
        let pleg = Pleg::new(fake.client(), clock.clone(), metrics.clone(), Default::default());
        let status = StatusManager::new(
            Arc::new(Directory::default()),
            Arc::new(|_: &PodUid| Remains::default()),
            "containerd".into(),
            clock.clone(),
            metrics.clone(),
        );
        let means = Arc::new(Means {
            runtime: fake.client(),
            pleg,
            clock: clock.clone(),
            events: recorder,
            status,
            metrics,
            node_address: None,
            agent_started: clock.now().wall,
        });
        let instance = start(&fake, &pod).await;
        let shown = json!({ "phase": "Running", "containerStatuses": [{
            "name": "app", "image": "i", "imageID": "i", "restartCount": 0, "ready": false,
            "containerID": format!("containerd://{instance}"), "started": false,
        }] });
        means.status.set(&pod, serde_json::from_value(shown).unwrap());
        let healthy = Arc::new(AtomicBool::new(true));
        let answer = healthy.clone();
        fake.answer_exec(move |_| {
            let code = i32::from(!answer.load(Relaxed));
            Some(ExecReply::exits(code).printing(if code == 0 { "" } else { "not well" }))
        });
        let cell = PodCell::new(pod.clone(), Lifecycle::begin(&pod, true));
        let schedule = Schedule::of(&pod).unwrap();
        let prober =
            Prober { cell: cell.clone(), means: means.clone(), schedule, series: HashMap::new() };
        let prober = tokio::spawn(prober.run(CancellationToken::new()));
        let stage = Self { fake, pod, cell, means, instance, events, prober, healthy };
        stage.look().await;
        stage
    }

    async fn look(&self) {
        self.means.pleg.look(&self.pod.uid, &self.pod.name).await.unwrap();
    }

    fn verdict(&self, kind: ProbeKind) -> Option<Verdict> {
        self.cell.probed().borrow().verdict(&self.instance, kind)
    }

    fn reported(&self) -> v1::ContainerStatus {
        let status = self.means.status.get(&self.pod.uid).unwrap();
        status.container_statuses.clone().unwrap()[0].clone()
    }

    fn execs(&self) -> u64 {
        self.fake.count(Rpc::ExecSync)
    }

    /// What was told so far.
    fn told(&mut self) -> Vec<(String, String)> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(|event| (event.reason.into_owned(), event.message)).collect()
    }
}

async fn start(fake: &Fake, pod: &Pod) -> ContainerId {
    let labels = |container: Option<&str>| {
        let mut all = std::collections::BTreeMap::from([
            (labels::POD_NAME.to_owned(), pod.name.name.to_string()),
            (labels::POD_NAMESPACE.to_owned(), pod.name.namespace.to_string()),
            (labels::POD_UID.to_owned(), pod.uid.to_string()),
        ]);
        all.extend(container.map(|name| (labels::CONTAINER_NAME.to_owned(), name.to_owned())));
        all
    };
    let sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name.name.to_string(),
            namespace: pod.name.namespace.to_string(),
            uid: pod.uid.to_string(),
            attempt: 0,
        }),
        labels: labels(None),
        ..PodSandboxConfig::default()
    };
    let runtime = fake.client();
    let id = runtime.run_sandbox(sandbox.clone(), "").await.unwrap();
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(ImageSpec { image: "i".into(), ..ImageSpec::default() }),
        labels: labels(Some("app")),
        log_path: "app/0.log".into(),
        ..ContainerConfig::default()
    };
    let instance = runtime.create_container(&id, container, sandbox).await.unwrap();
    runtime.start_container(&instance).await.unwrap();
    instance
}

fn exec(fields: Value) -> Value {
    let mut probe = json!({ "exec": { "command": ["check"] }, "periodSeconds": 1 });
    let Value::Object(fields) = fields else { panic!("fields") };
    probe.as_object_mut().unwrap().extend(fields);
    probe
}

#[tokio::test(start_paused = true)]
async fn readiness_reaches_the_report_and_the_worker_and_is_told_when_it_fails() {
    let mut stage = Scene::set(json!({ "readinessProbe": exec(json!({})) })).await;
    tokio::time::sleep(SECOND / 10).await;
    assert_eq!(stage.verdict(ProbeKind::Readiness), Some(Verdict::Success));
    assert!(stage.reported().ready);
    assert_eq!(stage.told(), []);

    stage.healthy.store(false, Relaxed);
    tokio::time::sleep(2 * SECOND).await;
    assert!(stage.reported().ready, "two failures are not three");
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(stage.verdict(ProbeKind::Readiness), Some(Verdict::Failure));
    assert!(!stage.reported().ready);
    let told = stage.told();
    let want = ("Unhealthy".to_owned(), "Readiness probe failed: not well".to_owned());
    assert!(told.len() >= 3 && told.iter().all(|event| *event == want), "{told:?}");

    let mut page = crate::metrics::Exposition::default();
    stage.means.metrics.probes.write(&mut page);
    let page = page.into_page();
    assert!(page.contains("probe_type=\"Readiness\",result=\"failed\"} "), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_liveness_failure_settles_once_and_then_nobody_asks_any_more() {
    let probe = exec(json!({ "failureThreshold": 2 }));
    let stage = Scene::set(json!({ "livenessProbe": probe })).await;
    stage.healthy.store(false, Relaxed);
    let mut probed = stage.cell.probed();
    probed.changed().await.unwrap();
    assert_eq!(stage.verdict(ProbeKind::Liveness), Some(Verdict::Failure));
    assert_eq!(stage.execs(), 2);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(stage.execs(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_asked_before_the_container_has_started_up() {
    let probes = json!({
        "startupProbe": exec(json!({ "failureThreshold": 60 })),
        "livenessProbe": exec(json!({ "exec": { "command": ["other"] } })),
    });
    let stage = Scene::set(probes).await;
    stage.healthy.store(false, Relaxed);
    tokio::time::sleep(10 * SECOND).await;
    assert!(stage.execs() >= 10);
    assert_eq!(stage.verdict(ProbeKind::Startup), None);
    stage.healthy.store(true, Relaxed);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(stage.verdict(ProbeKind::Startup), Some(Verdict::Success));
    assert_eq!(stage.reported().started, Some(true));
    let before = stage.execs();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(stage.execs() - before, 5, "only liveness is asked from now on");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_takes_too_long_is_a_failure() {
    let mut stage = Scene::set(json!({ "livenessProbe": exec(json!({})) })).await;
    stage.fake.answer_exec(|_| Some(ExecReply::exits(0).taking(5 * SECOND)));
    tokio::time::sleep(3 * SECOND).await;
    let text = "Liveness probe failed: command timed out: \"check\" timed out after 1s";
    assert_eq!(stage.told()[0], ("Unhealthy".to_owned(), text.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn probes_end_with_their_container_and_with_their_pod() {
    let mut stage = Scene::set(json!({ "readinessProbe": exec(json!({})) })).await;
    tokio::time::sleep(3 * SECOND + SECOND / 2).await;
    assert!(stage.fake.kill_container("web", "app", 1));
    stage.look().await;
    tokio::task::yield_now().await;
    let asked = stage.execs();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(stage.execs(), asked);
    assert_eq!(stage.verdict(ProbeKind::Readiness), None, "its verdicts are forgotten");
    assert_eq!(stage.told(), [], "and what was asked of a dead container is not told");
    assert!(!stage.prober.is_finished());

    stage.cell.request(Request::Kill(Kill::default()));
    stage.cell.advance(Lifecycle::stopped);
    stage.prober.await.unwrap();
}
