use podwright_core::builders::pod;
use podwright_core::users::UserRange;
use podwright_fake_runtime::{Fake, FakeOptions};
use podwright_host::clock::Clock;

use super::*;
use crate::resources::objects::Objects;
use crate::resources::users::Users;
use crate::resources::volumes::volume_type::VolumeProblem;

struct Scene {
    refresh: VolumeRefresh,
    state: RefreshState,
    clock: Clock,
    _dir: tempfile::TempDir,
}

/// Pods with volumes that are in use and due again after half a second.
async fn scene(pods: usize) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::manual(Clock::real().now());
    let users = Arc::new(Users::new(UserRange::for_pods(110, 0)));
    let objects = Objects::new(None, "n1".into());
    let volumes =
        Volumes::new(dir.path(), users, objects, Default::default(), clock.clone()).unwrap();
    let runtime = Fake::start(FakeOptions::default()).client();
    let pod_index = Arc::<PodIndex>::default();
    let refresh = VolumeRefresh {
        volumes: Arc::new(volumes),
        pleg: Pleg::new(runtime, clock.clone(), Arc::default(), Default::default()),
        changed: pod_index.changes(),
        pod_index,
        events: Recorder::new(clock.clone()).0,
    };
    for number in 0..pods {
        publish(&refresh, &clock, number).await;
    }
    let mut state = RefreshState::default();
    refresh.schedule(&refresh.volumes.published.take(), &mut state);
    Scene { refresh, state, clock, _dir: dir }
}

/// Publishes volumes of which one has failed just now.
async fn publish(refresh: &VolumeRefresh, clock: &Clock, number: usize) {
    let pod = Arc::new(pod(&format!("p{number}")).container("c").build());
    let entry = refresh.volumes.entry(&pod);
    let mut work = entry.lock_work().await;
    let failed = vec![("v".to_owned(), Err(VolumeProblem::processing("not there")))];
    let directory = refresh.volumes.pods.again().unwrap();
    work.set_up(
        &super::super::volume_type::PodDirectory(directory),
        failed,
        refresh.volumes.resync,
        clock,
    );
    entry.publish(&pod, &work, clock.now().mono);
    refresh.volumes.published.note([pod.uid.clone()]);
}

fn uid(number: usize) -> BTreeSet<PodUid> {
    [PodUid::new(format!("uid-p{number}"))].into()
}

#[tokio::test]
async fn event_of_a_pod_visits_no_other_pod() {
    for pods in [100, 10_000] {
        let Scene { refresh, mut state, clock, _dir } = scene(pods).await;
        assert_eq!(std::mem::take(&mut state.visits), pods, "each pod once, when it is published");
        let half = Duration::from_millis(500);
        assert_eq!(refresh.next(&state), Some(half), "among {pods} pods");
        assert_eq!(refresh.take_due(&mut state).len(), 0);
        assert_eq!(state.visits, 0, "nothing is due");

        refresh.mark_outdated(&uid(7), &mut state);
        assert_eq!(std::mem::take(&mut state.visits), 1, "an object of the pod changed");
        assert_eq!(refresh.next(&state), Some(Duration::ZERO));
        refresh.check_pods(&uid(7), &mut state);
        assert_eq!(std::mem::take(&mut state.visits), 1, "the pod changed");
        refresh.take_due(&mut state);
        assert_eq!(std::mem::take(&mut state.visits), 1, "the pod is due");

        state.busy.extend(uid(7));
        let failed = Refreshed { uid: PodUid::new("uid-p7"), failed: true };
        refresh.finish(failed, &mut state);
        assert_eq!(std::mem::take(&mut state.visits), 1, "its refresh has ended");
        refresh.volumes.forget(&PodUid::new("uid-p7"));
        refresh.schedule(&refresh.volumes.published.take(), &mut state);
        assert_eq!(std::mem::take(&mut state.visits), 1, "the pod has ended");
        assert!(state.backing_off.is_empty() && state.busy.is_empty());

        clock.advance(half);
        refresh.take_due(&mut state);
        assert_eq!(std::mem::take(&mut state.visits), pods - 1, "every other pod is due now");
    }
}

#[tokio::test]
async fn pod_whose_worker_waits_for_a_volume_is_looked_at_again() {
    let Scene { refresh, mut state, clock, _dir } = scene(1).await;
    let waits = serde_json::json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    let pod = pod("p0")
        .container_with("c", waits)
        .spec("volumes", serde_json::json!([{ "name": "v", "emptyDir": {} }]));
    let pod = Arc::new(pod.build());
    let entry = refresh.volumes.entry(&pod);
    let work = entry.lock_work().await;
    entry.publish(&pod, &work, clock.now().mono);
    drop(work);
    refresh.schedule(&uid(0), &mut state);
    assert_eq!(refresh.next(&state), Some(WAITING_RECHECK), "its worker handles the volume");
    clock.advance(WAITING_RECHECK);
    assert!(refresh.take_due(&mut state).is_empty());
    assert_eq!(refresh.next(&state), Some(WAITING_RECHECK));
}
