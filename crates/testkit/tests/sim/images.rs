//! Images: a container's user follows from the runtime's image status.

use podwright_fake_runtime::{Code, FakeImage, Fault, Pull, Rpc, Rule};
use podwright_testkit::sim::test_pod::test_pod;
use podwright_testkit::sim::{self, Options, Sim, record};

use crate::{assert_invariants, s};

const IMAGE: &str = "localhost/podwright/unprivileged:1";

/// Waiting reason of the pod's only container.
fn waiting_reason(sim: &Sim, pod: &str) -> Option<String> {
    let pod = sim.record.pod(pod)?;
    let status = record::containers(&pod).first()?.state.clone()?;
    status.waiting?.reason
}

#[test]
fn container_waits_while_its_pulled_image_cannot_be_inspected_then_runs_as_the_images_user() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.images().offer(FakeImage::new(IMAGE).user(1000), Pull::takes(s(1)));
        // After a pull the image is inspected by its id.
        let fault = Fault::Error(Code::Internal, "snapshotter is busy".into());
        let after_pull = |about: &podwright_fake_runtime::About| {
            about.image.as_deref().is_some_and(|image| image.starts_with("sha256:"))
        };
        sim.fake.fail(Rule::on(Rpc::ImageStatus, fault).only(after_pull).first(1));
        sim.create(&test_pod("web").container("app", IMAGE)).await;
        let inspected = |sim: &Sim| sim.fake.calls().iter().any(|call| call.fault.is_some());
        sim.until("the image is pulled and inspected", s(60), inspected).await;
        let shown = |sim: &Sim| waiting_reason(sim, "web").as_deref() == Some("ImageInspectError");
        sim.until("the status shows it", s(10), shown).await;
        assert_eq!(sim.fake.count(Rpc::CreateContainer), 0, "{}", sim.history());
        assert!(sim.events("web").await.contains(&"InspectFailed".to_owned()));
        sim.until_ready("web").await;
        let snapshot = sim.fake.snapshot();
        let users: Vec<_> = snapshot.containers_of("web").map(|container| container.user).collect();
        assert_eq!(users, [Some(1000)], "{}", sim.history());
        assert_invariants(&sim);
    });
}

#[test]
fn image_that_can_never_be_inspected_after_its_pull_is_pulled_less_and_less_often() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.images().offer(FakeImage::new(IMAGE).user(1000), Pull::takes(s(1)));
        let fault = Fault::Error(Code::Internal, "snapshotter is broken".into());
        let after_pull = |about: &podwright_fake_runtime::About| {
            about.image.as_deref().is_some_and(|image| image.starts_with("sha256:"))
        };
        sim.fake.fail(Rule::on(Rpc::ImageStatus, fault).only(after_pull));
        sim.create(&test_pod("web").container("app", IMAGE).edit(|pod| {
            pod["spec"]["containers"][0]["imagePullPolicy"] = "Always".into();
        }))
        .await;
        sim.pass(s(600)).await;
        // Pulls at about 0, 10, 30, 70, 150 and 310 s, and the next after 300 s more.
        let pulls = sim.fake.count(Rpc::PullImage);
        assert!((5..=7).contains(&pulls), "{pulls} pulls in 10 minutes\n{}", sim.history());
        let reason = waiting_reason(&sim, "web");
        assert_eq!(reason.as_deref(), Some("ImagePullBackOff"), "{}", sim.history());
        assert_invariants(&sim);
    });
}
