//! Long outage of the API server.

use podwright_testkit::sim::test_pod::{APP, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants};

use super::{assert_invariants, s};

#[test]
fn statuses_are_reported_after_a_ten_minute_api_outage() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let steady = sim.create(&test_pod("steady").container("app", APP)).await;
        sim.create(&test_pod("dies").container("app", APP)).await;
        sim.create(&test_pod("goes").container("app", APP)).await;
        for name in ["steady", "dies", "goes"] {
            sim.until_ready(name).await;
        }
        sim.delete("goes", None).await;
        sim.pass(s(1)).await;
        sim.api.go_down();
        assert!(sim.fake.kill_container("dies", "app", 3));
        sim.pass(s(600)).await;
        assert_eq!(sim.fake.snapshot().running("dies"), ["app"], "it was restarted");
        assert!(sim.fake.snapshot().running("goes").is_empty());
        sim.api.come_up();
        sim.until_gone("goes").await;
        sim.pass(s(10)).await;
        let pod = sim.record.pod("dies").unwrap();
        let container = &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        assert_eq!(container.restart_count, 1);
        assert_eq!(invariants::disturbances(&sim, &steady), [""; 0]);
        assert_invariants(&sim);
    });
}
