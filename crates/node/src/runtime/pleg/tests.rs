use podwright_core::builders;
use podwright_core::labels;
use podwright_core::observed::ItemKind;
use podwright_core::pod::Pod;
use podwright_fake_runtime::{Fake, FakeOptions, Fault, Rpc, Rule};
use podwright_proto::cri as wire;

use super::*;

struct IgnoreAll;

impl Listener for IgnoreAll {
    fn notify(&self, _: &PodUid, _: &[PodEvent]) {}
}

/// Counts notifications.
#[derive(Default)]
struct Counting(Mutex<usize>);

impl Listener for Counting {
    fn notify(&self, _: &PodUid, _: &[PodEvent]) {
        *self.0.lock() += 1;
    }
}

fn pleg_of(fake: &Fake) -> Arc<Pleg> {
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default())
}

async fn run_sandbox(fake: &Fake, pod: &Pod) {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let config = wire::PodSandboxConfig {
        metadata: Some(wire::PodSandboxMetadata {
            name: pod.name.name.to_string(),
            namespace: pod.name.namespace.to_string(),
            uid: pod.uid.to_string(),
            attempt: 0,
        }),
        labels: [
            label(labels::POD_NAME, &pod.name.name),
            label(labels::POD_NAMESPACE, &pod.name.namespace),
            label(labels::POD_UID, pod.uid.as_str()),
        ]
        .into(),
        ..Default::default()
    };
    fake.client().run_sandbox(config, "").await.unwrap();
}

fn item(pod: &Pod, state: ListedState) -> ListedItem<'_> {
    ListedItem {
        pod: pod.uid.as_str(),
        namespace: &pod.name.namespace,
        name: &pod.name.name,
        kind: ItemKind::Sandbox,
        id: "s",
        state,
    }
}

#[tokio::test(start_paused = true)]
async fn relist_notifies_only_of_what_the_worker_has_not_seen() {
    let web = builders::pod("web").container("app").build();
    for (inspector, notified) in
        [(None, 1), (Some(Inspector::Worker), 0), (Some(Inspector::Other), 1)]
    {
        let fake = Fake::start(FakeOptions::default());
        let (pleg, counting) = (pleg_of(&fake), Counting::default());
        pleg.relist(&counting).await.unwrap();
        run_sandbox(&fake, &web).await;
        if let Some(inspector) = inspector {
            pleg.inspect_for(inspector, &web.uid, &web.name).await.unwrap();
        }
        pleg.relist(&counting).await.unwrap();
        assert_eq!(*counting.0.lock(), notified, "inspected by {inspector:?}");
        pleg.relist(&counting).await.unwrap();
        assert_eq!(*counting.0.lock(), notified, "nothing changed");
        let sandbox = pleg.last.lock().get(&web.uid).unwrap().ids().next().unwrap().to_string();
        fake.client().stop_sandbox(&podwright_core::ids::SandboxId::new(sandbox)).await.unwrap();
        pleg.relist(&counting).await.unwrap();
        assert_eq!(*counting.0.lock(), notified + 1, "it ended since");
    }
}

#[tokio::test(start_paused = true)]
async fn inspections_are_limited_and_those_that_hang_do_not_count() {
    let inspections = 3 * CONCURRENT_INSPECTIONS as u64;
    for (delay, after_half, after_one_and_a_half) in [
        // Each of them lasts a third of a second.
        (Duration::from_millis(333), 2, 3),
        (Duration::from_secs(10), 1, 2),
    ] {
        let fake = Fake::start(FakeOptions::default());
        fake.fail(Rule::on_any_of([Rpc::ListPodSandbox], Fault::Delay(delay)));
        let pleg = pleg_of(&fake);
        let uids = (0..inspections).map(|number| PodUid::new(format!("{number}")));
        let all: Vec<_> = uids
            .map(|uid| {
                let pleg = pleg.clone();
                tokio::spawn(async move {
                    pleg.inspect(&uid, &PodName::new("ns", "p")).await.unwrap();
                })
            })
            .collect();
        let began = || fake.count(Rpc::ListPodSandbox) / CONCURRENT_INSPECTIONS as u64;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(began(), after_half, "{delay:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(began(), after_one_and_a_half, "{delay:?}");
        for inspection in all {
            inspection.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn relists_stay_frequent_when_the_event_stream_is_refused_late() {
    let fake = Fake::start(FakeOptions::default());
    let refusal = Fault::Error(tonic::Code::Unimplemented, "no events".into());
    let slow = Fault::Delay(2 * RECONNECT_DELAY);
    for fault in [slow, refusal] {
        fake.fail(Rule::on_any_of([Rpc::GetContainerEvents, Rpc::Subscribe], fault));
    }
    let pleg = pleg_of(&fake);
    let mut has_events = pleg.has_events.subscribe();
    let following = pleg.event_loop(&IgnoreAll, CancellationToken::new());
    let opened = async { has_events.wait_for(|up| *up).await.map(|up| *up).unwrap() };
    let (open, ()) = tokio::join!(opened, following);
    assert!(open, "no response counts as an open stream");
    assert!(!*pleg.has_events.borrow());
}

#[tokio::test(start_paused = true)]
async fn pod_that_ended_after_the_relist_is_not_alive_once_it_is_forgotten() {
    let fake = Fake::start(FakeOptions::default());
    let pleg = pleg_of(&fake);
    let at = |second| Mono(Duration::from_secs(second));
    let job = builders::pod("job").container("app").build();
    let ended = builders::observed(&job).sandbox("s", 0, false).build();
    for (as_of, alive) in [(1, true), (3, false)] {
        pleg.last.lock().merge(vec![item(&job, ListedState::Running)]);
        pleg.relisted.send_replace(Some(Relist { began: at(2) }));
        let observed = Arc::new(ObservedPod { as_of: at(as_of), ..ended.clone() });
        let observed = watch::Sender::new(Some(observed));
        pleg.cache.lock().insert(job.uid.clone(), CacheEntry { observed, by_worker: true });
        pleg.forget(&job.uid);
        assert_eq!(pleg.is_alive(&job.uid), alive, "observed at {as_of}, listed at 2");
    }
}

#[tokio::test(start_paused = true)]
async fn exit_hints_are_repeated_and_do_not_delay_others() {
    let hints = [
        Ok(cri::Hint::Ended("ended".into())),
        Ok(cri::Hint::Id("started".into())),
        Ok(cri::Hint::Pod(PodUid::new("pod"))),
    ];
    let began = tokio::time::Instant::now();
    let received = with_repeats(stream::iter(hints)).map(|hint| {
        let source = match hint {
            Ok(cri::Hint::Id(id) | cri::Hint::Ended(id)) => id,
            Ok(cri::Hint::Pod(uid)) => uid.to_string(),
            Err(error) => panic!("{error}"),
        };
        (began.elapsed().as_millis(), source)
    });
    let mut received: Vec<_> = received.collect().await;
    received.sort();
    let want = [
        (0, "ended"),
        (0, "pod"),
        (0, "started"),
        (20, "ended"),
        (100, "ended"),
        (500, "ended"),
        (2000, "ended"),
    ];
    assert_eq!(received, want.map(|(at, source)| (at, source.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn inspection_that_began_earlier_does_not_replace_a_newer_one() {
    let fake = Fake::start(FakeOptions::default());
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
    let job = builders::pod("job").container("app").build();
    // The runtime has nothing of the pod; the later inspection saw a sandbox.
    let newer = builders::observed(&job).sandbox("s", 0, true).build();
    let newer = Arc::new(ObservedPod { as_of: Mono(Duration::from_secs(60)), ..newer });
    let entry = CacheEntry { observed: watch::Sender::new(Some(newer.clone())), by_worker: true };
    pleg.cache.lock().insert(job.uid.clone(), entry);
    let older = pleg.inspect(&job.uid, &job.name).await.unwrap();
    assert!(older.sandboxes.is_empty() && older.as_of < newer.as_of);
    assert_eq!(pleg.cached(&job.uid), Some(newer));
    tokio::time::sleep(Duration::from_secs(61)).await;
    pleg.inspect(&job.uid, &job.name).await.unwrap();
    assert!(pleg.cached(&job.uid).unwrap().sandboxes.is_empty(), "a later one replaces it");
}

#[tokio::test(start_paused = true)]
async fn pleg_is_unhealthy_three_minutes_after_the_last_relist() {
    let fake = Fake::start(FakeOptions::default());
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
    assert_eq!(pleg.unhealthy().as_deref(), Some("pleg has yet to be successful"));
    pleg.relist(&IgnoreAll).await.unwrap();
    tokio::time::sleep(RELIST_THRESHOLD - Duration::from_secs(1)).await;
    assert_eq!(pleg.unhealthy(), None);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let text = "pleg was last seen active 181s ago; threshold is 3m0s";
    assert_eq!(pleg.unhealthy().as_deref(), Some(text));
    fake.fail(Rule::on(Rpc::ListPodSandbox, Fault::Error(tonic::Code::Unknown, "x".into())));
    assert!(pleg.relist(&IgnoreAll).await.is_err());
    assert!(pleg.unhealthy().is_some(), "a failed relist proves nothing");
    fake.heal();
    pleg.relist(&IgnoreAll).await.unwrap();
    assert_eq!(pleg.unhealthy(), None);
}

#[tokio::test(start_paused = true)]
async fn only_a_relist_after_the_observation_contradicts_it() {
    let fake = Fake::start(FakeOptions::default());
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
    let at = |second| Mono(Duration::from_secs(second));
    let job = builders::pod("job").container("app").build();
    let seen = |ready| builders::observed(&job).sandbox("s", 0, ready).build();
    pleg.last.lock().merge(vec![item(&job, ListedState::Running)]);
    pleg.relisted.send_replace(Some(Relist { began: at(2) }));
    for (as_of, ready, contradicts) in [(1, false, true), (3, false, false), (1, true, false)] {
        let observed = ObservedPod { as_of: at(as_of), ..seen(ready) };
        assert_eq!(pleg.contradicts(&observed), contradicts, "as of {as_of}, ready {ready}");
    }
}
