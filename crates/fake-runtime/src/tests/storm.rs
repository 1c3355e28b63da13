//! Many pods and many faults at once, with the simplest possible agent: it inspects, does one
//! thing, and inspects again. It must converge if the fake is correct.

use podwright_core::observed::State;
use tonic::Code;

use super::*;

#[tokio::test(start_paused = true)]
async fn pods_finish_despite_faults_and_leave_nothing_behind() {
    for seed in 0..8 {
        let bed = bed_with(FakeOptions { seed, ..Default::default() });
        for (fault, chance) in [
            (Fault::Error(Code::Internal, "no".into()), 0.1),
            (Fault::DoneButError(Code::Internal, "no".into()), 0.1),
            (Fault::Delay(seconds(2)), 0.2),
            (Fault::Hang, 0.05),
            (Fault::Late(seconds(4)), 0.05),
            (Fault::Late(seconds(40)), 0.05),
            (Fault::Disconnect, 0.05),
            (Fault::DoneButDisconnect, 0.05),
        ] {
            bed.fake.fail(Rule::on_every_call(fault).chance(chance));
        }
        let pods = (0..4).map(|n| {
            let (client, pod) =
                (bed.fake.client_with(Timeouts { call: seconds(10) }), format!("p{n}"));
            tokio::spawn(async move {
                bring_up(&client, &pod).await;
                take_down(&client, &pod).await;
            })
        });
        let all_pods = futures::future::join_all(pods);
        let finished = tokio::time::timeout(seconds(36_000), all_pods).await;
        assert!(finished.is_ok(), "seed {seed}: {:?}", bed.fake.snapshot());
        assert!(finished.unwrap().iter().all(Result::is_ok), "seed {seed}");
        assert!(bed.fake.snapshot().has_no_pods(), "seed {seed}: {:?}", bed.fake.snapshot());
        assert_eq!(bed.fake.violations(), [], "seed {seed}");
    }
}

async fn inspect_pods(client: &Client, pod: &str) -> Option<ObservedPod> {
    tokio::time::sleep(seconds(1)).await;
    let (uid, name) = (PodUid::new(format!("uid-{pod}")), PodName::new("default", pod));
    client.observe(&uid, &name, Mono::ZERO).await.ok().map(|(observed, _)| observed)
}

async fn bring_up(client: &Client, pod: &str) {
    loop {
        let Some(seen) = inspect_pods(client, pod).await else { continue };
        let next_sandbox = seen.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
        let Some(sandbox) = seen.sandboxes.iter().find(|sandbox| sandbox.ready) else {
            let _ = client.run_sandbox(sandbox_config(pod, next_sandbox), "").await;
            continue;
        };
        let next_instance = seen.instances.iter().map(|i| i.attempt + 1).max().unwrap_or(0);
        let newest = seen.instances.iter().max_by_key(|instance| instance.created);
        match newest.map(|instance| (&instance.id, &instance.state)) {
            Some((_, State::Running { .. })) => return,
            Some((id, State::Created)) => {
                let _ = client.start_container(id).await;
            }
            None | Some((_, State::Exited(_) | State::Unknown)) => {
                let config = container_config(pod, "app", next_instance);
                let of = sandbox_config(pod, sandbox.attempt);
                let _ = client.create_container(&sandbox.id, config, of).await;
            }
        }
    }
}

/// An object counts as gone if it stays gone for longer than any delay.
async fn take_down(client: &Client, pod: &str) {
    let mut quiet = 0;
    while quiet < 10 {
        tokio::time::sleep(seconds(5)).await;
        let Some(seen) = inspect_pods(client, pod).await else { continue };
        quiet = if seen.sandboxes.is_empty() { quiet + 1 } else { 0 };
        for instance in &seen.instances {
            let _ = client.stop_container(&instance.id, seconds(2)).await;
        }
        for sandbox in &seen.sandboxes {
            let _ = client.remove_sandbox(&sandbox.id).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_concurrent_pods_leave_nothing_behind() {
    let bed = bed();
    bed.fake.script(IMAGE, Script::exits(0, seconds(3600)));
    let pods = (0..300).map(|n| {
        let (fake, pod) = (bed.fake.clone(), format!("p{n}"));
        let client = bed.client.clone();
        tokio::spawn(async move {
            let (sandbox, container) = Bed { fake, client: client.clone() }.running(&pod).await;
            client.stop_container(&container, seconds(2)).await.unwrap();
            client.stop_sandbox(&sandbox).await.unwrap();
            client.remove_sandbox(&sandbox).await.unwrap();
        })
    });
    assert!(futures::future::join_all(pods).await.iter().all(Result::is_ok));
    assert!(bed.fake.snapshot().has_no_pods());
    assert_eq!(bed.fake.violations(), []);
    let runtime_state = bed.fake.shared.runtime_state.lock();
    assert!(runtime_state.starts.is_empty() && runtime_state.addresses.are_all_free());
    assert!(
        runtime_state.sandbox_names.are_all_free() && runtime_state.container_names.are_all_free()
    );
}
