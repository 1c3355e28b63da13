//! Tests of the prober on the fake runtime, with paused time. There is no pod worker: the test
//! starts the container and inspects it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_core::builders;
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::labels;
use podwright_core::lifecycle::{Kill, Lifecycle, Request};
use podwright_core::status::manager::PodLeftovers;
use podwright_fake_runtime::{ExecReply, Fake, FakeOptions, Rpc};
use podwright_proto::cri::{
    ContainerConfig, ContainerMetadata, ImageSpec, PodSandboxConfig, PodSandboxMetadata,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::pods::PodIndex;
use crate::report::events::Occurrence;

const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    fake: Fake,
    pod: Arc<Pod>,
    handle: Arc<PodHandle>,
    context: Arc<ProbeContext>,
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
            Arc::new(PodIndex::default()),
            Arc::new(|_: &PodUid| PodLeftovers::default()),
            "containerd".into(),
            clock.clone(),
            metrics.clone(),
        );
        let context = Arc::new(ProbeContext {
            runtime: fake.client(),
            pleg,
            clock: clock.clone(),
            events: recorder,
            status,
            metrics,
            addresses: watch::channel(Default::default()).1,
            agent_started: clock.now().wall,
        });
        let instance = start(&fake, &pod).await;
        let shown = json!({ "phase": "Running", "containerStatuses": [{
            "name": "app", "image": "i", "imageID": "i", "restartCount": 0, "ready": false,
            "containerID": format!("containerd://{instance}"), "started": false,
        }] });
        context.status.set(&pod, serde_json::from_value(shown).unwrap());
        let healthy = Arc::new(AtomicBool::new(true));
        let answer = healthy.clone();
        fake.handle_exec(move |_| {
            let code = i32::from(!answer.load(Relaxed));
            Some(ExecReply::exits(code).printing(if code == 0 { "" } else { "not well" }))
        });
        let handle = PodHandle::new(pod.clone(), Lifecycle::begin(&pod, true));
        let schedule = Schedule::of(&pod).unwrap();
        let prober = Prober {
            handle: handle.clone(),
            context: context.clone(),
            schedule,
            series: HashMap::new(),
        };
        let prober = tokio::spawn(prober.run(CancellationToken::new()));
        let scene = Self { fake, pod, handle, context, instance, events, prober, healthy };
        scene.inspect().await;
        scene
    }

    async fn inspect(&self) {
        self.context.pleg.inspect(&self.pod.uid, &self.pod.name).await.unwrap();
    }

    fn verdict(&self, kind: ProbeKind) -> Option<ProbeVerdict> {
        self.handle.probed().borrow().verdict(&self.instance, kind)
    }

    fn reported(&self) -> v1::ContainerStatus {
        let status = self.context.status.get(&self.pod.uid).unwrap();
        status.container_statuses.clone().unwrap()[0].clone()
    }

    fn execs(&self) -> u64 {
        self.fake.count(Rpc::ExecSync)
    }

    /// The events so far.
    fn recorded_events(&mut self) -> Vec<(String, String)> {
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
async fn readiness_reaches_status_and_worker_and_failures_are_events() {
    let mut scene = Scene::set(json!({ "readinessProbe": exec(json!({})) })).await;
    tokio::time::sleep(SECOND / 10).await;
    assert_eq!(scene.verdict(ProbeKind::Readiness), Some(ProbeVerdict::Success));
    assert!(scene.reported().ready);
    assert_eq!(scene.recorded_events(), []);

    scene.healthy.store(false, Relaxed);
    tokio::time::sleep(2 * SECOND).await;
    assert!(scene.reported().ready, "two failures are not three");
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(scene.verdict(ProbeKind::Readiness), Some(ProbeVerdict::Failure));
    assert!(!scene.reported().ready);
    let recorded = scene.recorded_events();
    let want = ("Unhealthy".to_owned(), "Readiness probe failed: not well".to_owned());
    assert!(recorded.len() >= 3 && recorded.iter().all(|event| *event == want), "{recorded:?}");

    let mut page = crate::telemetry::metrics::Exposition::default();
    scene.context.metrics.probes.write(&mut page);
    let page = page.into_page();
    assert!(page.contains("probe_type=\"Readiness\",result=\"failed\"} "), "{page}");
}

/// A worker may decide between the two: its report has to include the verdict already.
#[tokio::test(start_paused = true)]
async fn verdict_reaches_the_worker_before_it_reaches_the_status() {
    let scene = Scene::set(json!({ "livenessProbe": exec(json!({})) })).await;
    let settled = SettledVerdict {
        instance: scene.instance.clone(),
        kind: ProbeKind::Startup,
        verdict: ProbeVerdict::Success,
    };
    let other = Prober {
        handle: scene.handle.clone(),
        context: scene.context.clone(),
        schedule: Schedule::of(&scene.pod).unwrap(),
        series: HashMap::new(),
    };
    let status = scene.context.status.clone();
    std::thread::scope(|threads| {
        // While this is held no status can be recorded.
        let blocked = status.block_reports();
        let settling = threads.spawn(|| other.settle(&scene.pod, &settled));
        let limit = std::time::Instant::now() + 10 * SECOND;
        while scene.verdict(ProbeKind::Startup).is_none() && std::time::Instant::now() < limit {
            std::thread::yield_now();
        }
        let verdict = scene.verdict(ProbeKind::Startup);
        drop(blocked);
        settling.join().unwrap();
        assert_eq!(verdict, Some(ProbeVerdict::Success));
    });
    assert_eq!(scene.reported().started, Some(true));
}

#[tokio::test(start_paused = true)]
async fn liveness_probe_stops_after_its_failure_threshold() {
    let probe = exec(json!({ "failureThreshold": 2 }));
    let scene = Scene::set(json!({ "livenessProbe": probe })).await;
    scene.healthy.store(false, Relaxed);
    let mut probed = scene.handle.probed();
    probed.changed().await.unwrap();
    assert_eq!(scene.verdict(ProbeKind::Liveness), Some(ProbeVerdict::Failure));
    assert_eq!(scene.execs(), 2);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(scene.execs(), 2);
}

#[tokio::test(start_paused = true)]
async fn other_probes_wait_for_the_startup_probe() {
    let probes = json!({
        "startupProbe": exec(json!({ "failureThreshold": 60 })),
        "livenessProbe": exec(json!({ "exec": { "command": ["other"] } })),
    });
    let scene = Scene::set(probes).await;
    scene.healthy.store(false, Relaxed);
    tokio::time::sleep(10 * SECOND).await;
    assert!(scene.execs() >= 10);
    assert_eq!(scene.verdict(ProbeKind::Startup), None);
    scene.healthy.store(true, Relaxed);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(scene.verdict(ProbeKind::Startup), Some(ProbeVerdict::Success));
    assert_eq!(scene.reported().started, Some(true));
    let before = scene.execs();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(scene.execs() - before, 5, "only the liveness probe runs from now on");
}

#[tokio::test(start_paused = true)]
async fn exec_timeout_is_a_failure() {
    let mut scene = Scene::set(json!({ "livenessProbe": exec(json!({})) })).await;
    scene.fake.handle_exec(|_| Some(ExecReply::exits(0).taking(5 * SECOND)));
    tokio::time::sleep(3 * SECOND).await;
    let text = "Liveness probe failed: command timed out: \"check\" timed out after 1s";
    assert_eq!(scene.recorded_events()[0], ("Unhealthy".to_owned(), text.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn probes_end_with_their_container_and_with_their_pod() {
    let mut scene = Scene::set(json!({ "readinessProbe": exec(json!({})) })).await;
    tokio::time::sleep(3 * SECOND + SECOND / 2).await;
    assert!(scene.fake.kill_container("web", "app", 1));
    scene.inspect().await;
    tokio::task::yield_now().await;
    let before = scene.execs();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(scene.execs(), before);
    assert_eq!(scene.verdict(ProbeKind::Readiness), None, "its results are removed");
    assert_eq!(scene.recorded_events(), [], "no events for a dead container");
    assert!(!scene.prober.is_finished());

    scene.handle.request(Request::Kill(Kill::default()));
    scene.handle.advance(Lifecycle::stopped);
    scene.prober.await.unwrap();
}
