//! Images: what a container runs as follows from what the runtime says of its image.

use podwright_cri::fake::{Code, FakeImage, Fault, Pull, Rpc, Rule};
use podwright_testkit::sim::wish::wish;
use podwright_testkit::sim::{self, Options, Sim, record};

use crate::{lawful, s};

const IMAGE: &str = "localhost/podwright/unprivileged:1";

/// The reason for which the pod's only container waits.
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
        // After a pull the image is asked for by its id.
        let fault = Fault::Error(Code::Internal, "snapshotter is busy".into());
        let after_pull = |about: &podwright_cri::fake::About| {
            about.image.as_deref().is_some_and(|image| image.starts_with("sha256:"))
        };
        sim.fake.fail(Rule::on(Rpc::ImageStatus, fault).only(after_pull).first(1));
        sim.create(&wish("web").container("app", IMAGE)).await;
        let inspected = |sim: &Sim| sim.fake.calls().iter().any(|call| call.fault.is_some());
        sim.until("the image is pulled and inspected", s(60), inspected).await;
        let told = |sim: &Sim| waiting_reason(sim, "web").as_deref() == Some("ImageInspectError");
        sim.until("the status says so", s(10), told).await;
        assert_eq!(sim.fake.count(Rpc::CreateContainer), 0, "{}", sim.story());
        assert!(sim.events("web").await.contains(&"InspectFailed".to_owned()));
        sim.until_ready("web").await;
        let snapshot = sim.fake.snapshot();
        let users: Vec<_> = snapshot.containers_of("web").map(|container| container.user).collect();
        assert_eq!(users, [Some(1000)], "{}", sim.story());
        lawful(&sim);
    });
}

#[test]
fn image_that_can_never_be_inspected_after_its_pull_is_pulled_less_and_less_often() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.images().offer(FakeImage::new(IMAGE).user(1000), Pull::takes(s(1)));
        let fault = Fault::Error(Code::Internal, "snapshotter is broken".into());
        let after_pull = |about: &podwright_cri::fake::About| {
            about.image.as_deref().is_some_and(|image| image.starts_with("sha256:"))
        };
        sim.fake.fail(Rule::on(Rpc::ImageStatus, fault).only(after_pull));
        sim.create(&wish("web").container("app", IMAGE).edit(|pod| {
            pod["spec"]["containers"][0]["imagePullPolicy"] = "Always".into();
        }))
        .await;
        sim.pass(s(600)).await;
        // Pulls at about 0, 10, 30, 70, 150 and 310 s, and the next after 300 s more.
        let pulls = sim.fake.count(Rpc::PullImage);
        assert!((5..=7).contains(&pulls), "{pulls} pulls in 10 minutes\n{}", sim.story());
        let reason = waiting_reason(&sim, "web");
        assert_eq!(reason.as_deref(), Some("ImagePullBackOff"), "{}", sim.story());
        lawful(&sim);
    });
}
