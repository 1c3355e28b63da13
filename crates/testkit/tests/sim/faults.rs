//! Each call and each request goes wrong in each way there is, once and again, in a pod's life.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_cri::fake::{Call, Code, ExecReply, Fault, Features, Pull, Rpc, Rule, Script};
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::wish::{APP, APP_2, INIT, NODE, Wish, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{clean, lawful, mounting, s};

/// Calls that an agent makes in [`Scene::life`]. Those of one line go wrong in one life: none of
/// them keeps another from being made.
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

/// For a volume that is a mount, so that only root gets to ask for it.
const TOKEN: (Verb, &str) = (Verb::Create, "serviceaccounts/token");

/// What goes wrong, and how.
#[derive(Clone, Debug)]
enum Trouble {
    Runtime(Rpc, Fault),
    Api(Verb, &'static str, ApiFault),
}

impl Trouble {
    /// Goes on until it is ended, if there is something to end.
    fn begin(&self, sim: &Sim) -> Option<JoinHandle<()>> {
        match self {
            Self::Runtime(rpc, fault) => {
                // Who is held back is overtaken by one who is not.
                let times = if matches!(fault, Fault::Overtaken(_)) { 1 } else { 2 };
                sim.fake.fail(Rule::on(*rpc, fault.clone()).first(times));
                let stuck = *rpc == Rpc::PullImage && matches!(fault, Fault::Hang | Fault::Late(_));
                stuck.then(|| end_pulls(sim))
            }
            Self::Api(verb, resource, fault) => {
                let times = if matches!(fault, ApiFault::Overtaken(_)) { 1 } else { 2 };
                sim.api.fail(ApiRule::on(*verb, resource, fault.clone()).first(times));
                if (*verb, *resource) == (Verb::Get, "pods") {
                    // Asked only by an agent that was told that its copy is out of date.
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

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runtime(rpc, fault) => write!(f, "{rpc} {fault:?}"),
            Self::Api(verb, resource, fault) => write!(f, "{verb} {resource} {fault:?}"),
        }
    }
}

/// A pull takes as long as it takes. It is for the runtime to end one that gets no further.
fn end_pulls(sim: &Sim) -> JoinHandle<()> {
    let fake = sim.fake.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(s(60)).await;
            fake.hang_up();
        }
    })
}

/// A world with a pod that nobody touches.
struct Scene {
    sim: Sim,
    neighbour: String,
    /// The pod that lives and ends there.
    web: Wish,
}

impl Scene {
    async fn new(features: Features) -> Self {
        let mut sim = Sim::new(Options { features, chores: true, ..Options::default() }).await;
        for image in [APP, INIT] {
            sim.fake.images().offer(image, Pull::takes(s(1)));
        }
        sim.fake.script(APP, Script::forever().says("something for the log"));
        // Each container is ready when it is asked for the third time.
        let asked: Mutex<BTreeMap<String, u32>> = Mutex::default();
        sim.fake.answer_exec(move |call| {
            let mut asked = asked.lock();
            let times = asked.entry(call.container_id.clone()).or_default();
            *times += 1;
            Some(ExecReply::exits((*times < 3).into()))
        });
        sim.make::<v1::ConfigMap>("map", json!({ "data": { "key": "value" } })).await;
        sim.make::<v1::Secret>("secret", json!({ "stringData": { "key": "value" } })).await;
        sim.start().await;
        let neighbour = sim.create(&wish("neighbour").container("app", APP)).await;
        sim.until_ready("neighbour").await;
        Self { sim, neighbour, web: web() }
    }

    /// An agent starts anew, into trouble; an API pod and a static pod live and end under it.
    async fn life(&mut self, troubles: &[Trouble]) {
        let Self { sim, neighbour, web } = self;
        let told: Vec<String> = troubles.iter().map(ToString::to_string).collect();
        let told = told.join(", ");
        sim.crash().await;
        sim.fake.images().remove(INIT);
        sim.fake.images().add(APP_2).expect("an image that nobody uses");
        let begun: Vec<_> = troubles.iter().filter_map(|trouble| trouble.begin(sim)).collect();
        sim.start().await;
        sim.create(web).await;
        sim.write_manifest("static.json", &wish("static").container("app", APP).manifest());
        let mirror = format!("static-{NODE}");
        let ready =
            |sim: &Sim, name: &str| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
        let both = |sim: &Sim| ready(sim, "web") && ready(sim, &mirror);
        sim.until(&format!("{told}: both pods are ready"), s(300), both).await;
        assert!(sim.resize("web", "app", json!({ "cpu": "200m" })).await, "{told}");
        let resized = |sim: &Sim| cpu(sim).as_deref() == Some("200m");
        sim.until(&format!("{told}: the resize is done"), s(300), resized).await;
        // Logs are looked at every two seconds.
        sim.pass(s(3)).await;
        sim.delete("web", None).await;
        sim.remove_manifest("static.json");
        let gone = |sim: &Sim| sim.record.pods().len() == 1;
        sim.until(&format!("{told}: both pods are gone"), s(300), gone).await;
        let neighbours = std::slice::from_ref(neighbour);
        let nothing = |sim: &Sim| {
            sim.fake.snapshot().sandboxes.len() == 1 && laws::leftovers(sim, neighbours).is_empty()
        };
        sim.until(&format!("{told}: nothing is left"), s(300), nothing).await;
        clean(sim, neighbours);
        lawful(sim);
        let disturbed = laws::disturbances(sim, neighbour);
        assert!(disturbed.is_empty(), "{told}: {disturbed:?}\n{}", sim.story());
        for trouble in troubles {
            assert!(trouble.came(sim), "{trouble} never came: nobody asked\n{}", sim.story());
        }
        begun.iter().for_each(JoinHandle::abort);
        sim.fake.heal();
        sim.api.heal();
    }
}

/// A pod that needs a bit of everything: an image from afar, a command that says when it is ready,
/// a ConfigMap and a Secret.
fn web() -> Wish {
    wish("web").init("first", INIT).container("app", APP).edit(|pod| {
        pod["spec"]["volumes"] = json!([{ "name": "map", "configMap": { "name": "map" } }]);
        let app = &mut pod["spec"]["containers"][0];
        app["readinessProbe"] = json!({ "exec": { "command": ["ready"] }, "periodSeconds": 1 });
        app["volumeMounts"] = json!([{ "name": "map", "mountPath": "/map" }]);
        let secret = json!({ "secretKeyRef": { "name": "secret", "key": "key" } });
        app["env"] = json!([{ "name": "KEY", "valueFrom": secret }]);
        app["resources"] = json!({ "requests": { "cpu": "100m" } });
    })
}

/// The CPU of `web` that the API shows as enforced.
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

/// One life after the other in the same world, each with troubles of its own.
fn play(features: Features, lives: impl IntoIterator<Item = Vec<Trouble>>) {
    sim::run(async { play_in(Scene::new(features).await, lives).await });
}

async fn play_in(mut scene: Scene, lives: impl IntoIterator<Item = Vec<Trouble>>) {
    for troubles in lives {
        scene.life(&troubles).await;
    }
}

fn every_fault_of_calls(lines: &[&[Rpc]]) {
    for rpcs in lines {
        // Runtimes differ in where their events come from.
        let features = match rpcs.contains(&Rpc::GetContainerEvents) {
            true => Features::containerd_2(),
            false => Features::containerd_1_6(),
        };
        let lives = runtime_faults()
            .into_iter()
            .map(|fault| rpcs.iter().map(|rpc| Trouble::Runtime(*rpc, fault.clone())).collect());
        play(features, lives);
    }
}

fn every_fault_of_requests(lines: &[&[(Verb, &'static str)]]) {
    for requests in lines {
        play(Features::containerd_1_6(), every_fault_of(requests));
    }
}

fn every_fault_of(requests: &[(Verb, &'static str)]) -> impl Iterator<Item = Vec<Trouble>> {
    ApiFault::each().into_iter().map(|fault| {
        requests.iter().map(|(verb, of)| Trouble::Api(*verb, of, fault.clone())).collect()
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
        let mut scene = Scene::new(Features::containerd_1_6()).await;
        scene.sim.make::<v1::ServiceAccount>("robot", json!({})).await;
        scene.web = web().with_token_of("robot");
        play_in(scene, every_fault_of(&[TOKEN])).await;
    });
}

#[test]
fn whatever_is_asked_in_a_life_is_among_what_may_fail() {
    sim::run(async {
        let mut scene = Scene::new(Features::containerd_1_6()).await;
        scene.life(&[]).await;
        let (rpcs, requests) = (RPCS.concat(), REQUESTS.concat());
        let asked = Rpc::ALL.iter().filter(|rpc| scene.sim.fake.count(**rpc) > 0);
        let missing: Vec<&Rpc> = asked.filter(|rpc| !rpcs.contains(*rpc)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let calls = scene.sim.api.calls();
        let asked = calls.iter().map(|call| (call.verb, call.resource.as_str()));
        let missing: BTreeSet<String> = asked
            .filter(|request| !requests.contains(request))
            .map(|(verb, resource)| format!("{verb} {resource}"))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    });
}

#[test]
fn a_cgroup_that_cannot_be_looked_at_costs_no_container() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.ground.hide_cgroups();
        // Something that makes its worker look.
        assert!(sim.patch("web", json!({ "metadata": { "labels": { "a": "b" } } })).await);
        sim.pass(s(120)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
        sim.ground.show_cgroups();
        sim.pass(s(10)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(s(10)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn a_pod_is_heard_of_while_the_runtime_does_not_answer_housekeeping() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&wish("left").container("app", APP)).await;
        sim.until_ready("left").await;
        sim.crash().await;
        sim.delete("left", Some(0)).await;
        sim.api.go_down();
        sim.start().await;
        sim.pass(s(5)).await;
        // The orphan is known; whoever lists from now on waits.
        sim.fake.fail(Rule::on(Rpc::ListPodSandbox, Fault::Hang));
        sim.api.come_up();
        sim.until("all sources are heard", s(60), |sim| sim.node().directory.sources_ready()).await;
        sim.pass(s(4)).await;
        let heard = |name: &str| {
            sim.node().directory.pods().iter().any(|pod| pod.name.name.as_ref() == name)
        };
        sim.create(&wish("new").container("app", APP)).await;
        sim.until("the new pod is known", s(10), |_| heard("new")).await;
        sim.fake.heal();
        sim.until_ready("new").await;
        let stopped = |sim: &Sim| sim.fake.snapshot().running("left").is_empty();
        sim.until("the orphan is ended", s(300), stopped).await;
    });
}
