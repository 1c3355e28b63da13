//! Fault matrix: each runtime call and API request fails in each way, once and repeatedly, during a
//! pod's lifecycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_fake_runtime::{Call, Code, ExecReply, Fault, Features, Pull, Rpc, Rule, Script};
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::test_pod::{APP, APP_2, INIT, NODE, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{assert_invariants, clean, mounting, s};

/// Calls that an agent makes in [`FaultScenario::run_lifecycle`]. Those of one line fail in one
/// run: none of them prevents another.
const RPCS: [&[Rpc]; 11] = [
    &[Rpc::Version, Rpc::RunPodSandbox, Rpc::PullImage],
    &[Rpc::Status, Rpc::CreateContainer, Rpc::StopPodSandbox],
    &[Rpc::UpdateRuntimeConfig, Rpc::StartContainer, Rpc::RemovePodSandbox],
    &[Rpc::ListPodSandbox, Rpc::ExecSync],
    &[Rpc::ListContainers, Rpc::UpdateContainerResources],
    &[Rpc::PodSandboxStatus, Rpc::ImageStatus],
    &[Rpc::ContainerStatus, Rpc::ListImages],
    &[Rpc::Subscribe, Rpc::ReopenContainerLog],
    &[Rpc::ImageFsInfo, Rpc::RemoveContainer],
    &[Rpc::RemoveImage, Rpc::StopContainer],
    &[Rpc::GetContainerEvents, Rpc::UpdatePodSandboxResources],
];

/// Requests that an agent makes there, grouped in the same way.
const REQUESTS: [&[(Verb, &str)]; 7] = [
    &[(Verb::List, "pods"), (Verb::Patch, "nodes/status"), (Verb::Delete, "pods")],
    &[(Verb::Watch, "pods"), (Verb::List, "nodes"), (Verb::List, "configmaps")],
    &[(Verb::Get, "pods"), (Verb::Update, "leases"), (Verb::Watch, "secrets")],
    &[(Verb::Create, "pods"), (Verb::Get, "leases"), (Verb::List, "services")],
    &[(Verb::Patch, "pods/status"), (Verb::Create, "nodes"), (Verb::Watch, "configmaps")],
    &[
        (Verb::Get, "nodes"),
        (Verb::Create, "leases"),
        (Verb::Create, "events"),
        (Verb::List, "secrets"),
    ],
    &[(Verb::Watch, "nodes"), (Verb::Patch, "events"), (Verb::Watch, "services")],
];

/// For a volume that is a mount, which needs root.
const TOKEN: (Verb, &str) = (Verb::Create, "serviceaccounts/token");

/// Which calls fail, and how.
#[derive(Clone, Debug)]
enum InjectedFault {
    Runtime(Rpc, Fault),
    Api(Verb, &'static str, ApiFault),
}

impl InjectedFault {
    /// Continues until it is removed, if it has to be.
    fn begin(&self, sim: &Sim) -> Option<JoinHandle<()>> {
        match self {
            Self::Runtime(rpc, fault) => {
                // A delayed request is overtaken by one that is not.
                let times = if matches!(fault, Fault::Overtaken(_)) { 1 } else { 2 };
                sim.fake.fail(Rule::on(*rpc, fault.clone()).first(times));
                let stuck = *rpc == Rpc::PullImage && matches!(fault, Fault::Hang | Fault::Late(_));
                stuck.then(|| end_pulls(sim))
            }
            Self::Api(verb, resource, fault) => {
                let times = if matches!(fault, ApiFault::Overtaken(_)) { 1 } else { 2 };
                sim.api.fail(ApiRule::on(*verb, resource, fault.clone()).first(times));
                if (*verb, *resource) == (Verb::Get, "pods") {
                    // Requested only by an agent that was informed that its copy is out of date.
                    let refusal = ApiFault::Error(409);
                    sim.api.fail(ApiRule::on(Verb::Patch, "pods/status", refusal).first(times));
                }
                None
            }
        }
    }

    fn came(&self, sim: &Sim) -> bool {
        match self {
            Self::Runtime(rpc, fault) => {
                let came = |call: &Call| call.rpc == *rpc && call.fault.as_ref() == Some(fault);
                sim.fake.calls().iter().any(came)
            }
            Self::Api(verb, resource, fault) => sim.api.calls().iter().any(|call| {
                (call.verb, call.resource.as_str()) == (*verb, *resource)
                    && call.fault.as_ref() == Some(fault)
            }),
        }
    }
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runtime(rpc, fault) => write!(f, "{rpc} {fault:?}"),
            Self::Api(verb, resource, fault) => write!(f, "{verb} {resource} {fault:?}"),
        }
    }
}

/// A pull has no deadline. The runtime has to end one that makes no progress.
fn end_pulls(sim: &Sim) -> JoinHandle<()> {
    let fake = sim.fake.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(s(60)).await;
            fake.hang_up();
        }
    })
}

/// A simulation with a pod that is never touched.
struct FaultScenario {
    sim: Sim,
    neighbour: String,
    /// The pod that is created and deleted there.
    web: TestPod,
}

impl FaultScenario {
    async fn new(features: Features) -> Self {
        let mut sim = Sim::new(Options { features, chores: true, ..Options::default() }).await;
        for image in [APP, INIT] {
            sim.fake.images().offer(image, Pull::takes(s(1)));
        }
        sim.fake.script(APP, Script::forever().prints("something for the log"));
        // Each container is ready at its third probe.
        let requested: Mutex<BTreeMap<String, u32>> = Mutex::default();
        sim.fake.handle_exec(move |call| {
            let mut requested = requested.lock();
            let times = requested.entry(call.container_id.clone()).or_default();
            *times += 1;
            Some(ExecReply::exits((*times < 3).into()))
        });
        sim.make::<v1::ConfigMap>("map", json!({ "data": { "key": "value" } })).await;
        sim.make::<v1::Secret>("secret", json!({ "stringData": { "key": "value" } })).await;
        sim.start().await;
        let neighbour = sim.create(&test_pod("neighbour").container("app", APP)).await;
        sim.until_ready("neighbour").await;
        Self { sim, neighbour, web: web() }
    }

    /// Restarts the agent with these faults; an API pod and a static pod start and end under it.
    async fn run_lifecycle(&mut self, injected_faults: &[InjectedFault]) {
        let Self { sim, neighbour, web } = self;
        let context: Vec<String> = injected_faults.iter().map(ToString::to_string).collect();
        let context = context.join(", ");
        sim.crash().await;
        sim.fake.images().remove(INIT);
        sim.fake.images().add(APP_2).expect("an unused image");
        let begun: Vec<_> =
            injected_faults.iter().filter_map(|injected| injected.begin(sim)).collect();
        sim.start().await;
        sim.create(web).await;
        sim.write_manifest("static.json", &test_pod("static").container("app", APP).manifest());
        let mirror = format!("static-{NODE}");
        let ready =
            |sim: &Sim, name: &str| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
        let both = |sim: &Sim| ready(sim, "web") && ready(sim, &mirror);
        sim.until(&format!("{context}: both pods are ready"), s(300), both).await;
        assert!(sim.resize("web", "app", json!({ "cpu": "200m" })).await, "{context}");
        let resized = |sim: &Sim| cpu(sim).as_deref() == Some("200m");
        sim.until(&format!("{context}: the resize is done"), s(300), resized).await;
        // Logs are checked every two seconds.
        sim.pass(s(3)).await;
        sim.delete("web", None).await;
        sim.remove_manifest("static.json");
        let gone = |sim: &Sim| sim.record.pods().len() == 1;
        sim.until(&format!("{context}: both pods are gone"), s(300), gone).await;
        let neighbours = std::slice::from_ref(neighbour);
        let nothing = |sim: &Sim| {
            sim.fake.snapshot().sandboxes.len() == 1
                && invariants::leftovers(sim, neighbours).is_empty()
        };
        sim.until(&format!("{context}: nothing is left"), s(300), nothing).await;
        clean(sim, neighbours);
        assert_invariants(sim);
        let disturbed = invariants::disturbances(sim, neighbour);
        assert!(disturbed.is_empty(), "{context}: {disturbed:?}\n{}", sim.history());
        for injected in injected_faults {
            assert!(
                injected.came(sim),
                "{injected} never happened: no such request\n{}",
                sim.history()
            );
        }
        begun.iter().for_each(JoinHandle::abort);
        sim.fake.heal();
        sim.api.heal();
    }
}

/// A pod that needs an image pull, a readiness command, a ConfigMap and a Secret.
fn web() -> TestPod {
    test_pod("web").init("first", INIT).container("app", APP).edit(|pod| {
        pod["spec"]["volumes"] = json!([{ "name": "map", "configMap": { "name": "map" } }]);
        let app = &mut pod["spec"]["containers"][0];
        app["readinessProbe"] = json!({ "exec": { "command": ["ready"] }, "periodSeconds": 1 });
        app["volumeMounts"] = json!([{ "name": "map", "mountPath": "/map" }]);
        let secret = json!({ "secretKeyRef": { "name": "secret", "key": "key" } });
        app["env"] = json!([{ "name": "KEY", "valueFrom": secret }]);
        app["resources"] = json!({ "requests": { "cpu": "100m" } });
    })
}

/// The CPU of `web` that the API shows as actuated.
fn cpu(sim: &Sim) -> Option<String> {
    let pod = sim.record.pod("web")?;
    let app = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let requests = app.resources.as_ref()?.requests.as_ref()?;
    requests.get("cpu").map(|cpu| cpu.0.clone())
}

fn runtime_faults() -> Vec<Fault> {
    let text = || "a fault of the simulation".to_owned();
    vec![
        Fault::Error(Code::Unknown, text()),
        Fault::DoneButError(Code::Unavailable, text()),
        Fault::Delay(Duration::from_secs(4)),
        Fault::Hang,
        Fault::Late(Duration::from_secs(25)),
        Fault::Disconnect,
        Fault::DoneButDisconnect,
        Fault::Twice,
        Fault::Overtaken(Duration::from_secs(4)),
    ]
}

/// One lifecycle after the other in the same simulation, each with its own faults.
fn play(features: Features, lifecycles: impl IntoIterator<Item = Vec<InjectedFault>>) {
    sim::run(async { play_in(FaultScenario::new(features).await, lifecycles).await });
}

async fn play_in(
    mut scenario: FaultScenario,
    lifecycles: impl IntoIterator<Item = Vec<InjectedFault>>,
) {
    for injected_faults in lifecycles {
        scenario.run_lifecycle(&injected_faults).await;
    }
}

fn every_fault_of_calls(lines: &[&[Rpc]]) {
    for rpcs in lines {
        // Runtimes differ in the source of their events.
        let features = match rpcs.contains(&Rpc::GetContainerEvents) {
            true => Features::containerd_2(),
            false => Features::containerd_1_6(),
        };
        let lifecycles = runtime_faults().into_iter().map(|fault| {
            rpcs.iter().map(|rpc| InjectedFault::Runtime(*rpc, fault.clone())).collect()
        });
        play(features, lifecycles);
    }
}

fn every_fault_of_requests(lines: &[&[(Verb, &'static str)]]) {
    for requests in lines {
        play(Features::containerd_1_6(), every_fault_of(requests));
    }
}

fn every_fault_of(requests: &[(Verb, &'static str)]) -> impl Iterator<Item = Vec<InjectedFault>> {
    ApiFault::each().into_iter().map(|fault| {
        requests.iter().map(|(verb, of)| InjectedFault::Api(*verb, of, fault.clone())).collect()
    })
}

#[test]
fn every_runtime_call_may_fail_in_every_way_1() {
    every_fault_of_calls(&RPCS[..6]);
}

#[test]
fn every_runtime_call_may_fail_in_every_way_2() {
    every_fault_of_calls(&RPCS[6..]);
}

#[test]
fn every_api_request_may_fail_in_every_way_1() {
    every_fault_of_requests(&REQUESTS[..4]);
}

#[test]
fn every_api_request_may_fail_in_every_way_2() {
    every_fault_of_requests(&REQUESTS[4..]);
}

#[test]
fn every_request_for_a_token_may_fail_in_every_way() {
    if !mounting() {
        return;
    }
    sim::run(async {
        let mut scenario = FaultScenario::new(Features::containerd_1_6()).await;
        scenario.sim.make::<v1::ServiceAccount>("robot", json!({})).await;
        scenario.web = web().with_token_of("robot");
        play_in(scenario, every_fault_of(&[TOKEN])).await;
    });
}

#[test]
fn every_request_of_a_pod_lifecycle_is_in_the_fault_lists() {
    sim::run(async {
        let mut scenario = FaultScenario::new(Features::containerd_1_6()).await;
        scenario.run_lifecycle(&[]).await;
        let (rpcs, requests) = (RPCS.concat(), REQUESTS.concat());
        let requested = Rpc::ALL.iter().filter(|rpc| scenario.sim.fake.count(**rpc) > 0);
        let missing: Vec<&Rpc> = requested.filter(|rpc| !rpcs.contains(*rpc)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let calls = scenario.sim.api.calls();
        let requested = calls.iter().map(|call| (call.verb, call.resource.as_str()));
        let missing: BTreeSet<String> = requested
            .filter(|request| !requests.contains(request))
            .map(|(verb, resource)| format!("{verb} {resource}"))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    });
}

#[test]
fn unreadable_cgroup_stops_no_container() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.environment.hide_cgroups();
        // An event that makes its worker inspect the pod.
        assert!(sim.patch("web", json!({ "metadata": { "labels": { "a": "b" } } })).await);
        sim.pass(s(120)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
        sim.environment.show_cgroups();
        sim.pass(s(10)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(s(10)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn new_pod_is_noticed_while_housekeeping_waits_for_the_runtime() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("left").container("app", APP)).await;
        sim.until_ready("left").await;
        sim.crash().await;
        sim.delete("left", Some(0)).await;
        sim.api.go_down();
        sim.start().await;
        sim.pass(s(5)).await;
        // The orphan is known; every list call from now on waits.
        sim.fake.fail(Rule::on(Rpc::ListPodSandbox, Fault::Hang));
        sim.api.come_up();
        sim.until("all sources are ready", s(60), |sim| sim.node().pod_index.sources_ready()).await;
        sim.pass(s(4)).await;
        let heard = |name: &str| {
            sim.node().pod_index.pods().iter().any(|pod| pod.name.name.as_ref() == name)
        };
        sim.create(&test_pod("new").container("app", APP)).await;
        sim.until("the new pod is known", s(10), |_| heard("new")).await;
        sim.fake.heal();
        sim.until_ready("new").await;
        let stopped = |sim: &Sim| sim.fake.snapshot().running("left").is_empty();
        sim.until("the orphan is stopped", s(300), stopped).await;
    });
}
