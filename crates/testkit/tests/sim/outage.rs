//! An API server that is away for long.

use podwright_testkit::sim::wish::{APP, wish};
use podwright_testkit::sim::{self, Options, Sim, laws};

use super::{lawful, s};

#[test]
fn an_api_server_that_is_away_for_ten_minutes_is_told_everything_when_it_is_back() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let steady = sim.create(&wish("steady").container("app", APP)).await;
        sim.create(&wish("dies").container("app", APP)).await;
        sim.create(&wish("goes").container("app", APP)).await;
        for name in ["steady", "dies", "goes"] {
            sim.until_ready(name).await;
        }
        sim.delete("goes", None).await;
        sim.pass(s(1)).await;
        sim.api.go_down();
        assert!(sim.fake.kill_container("dies", "app", 3));
        sim.pass(s(600)).await;
        assert_eq!(sim.fake.snapshot().running("dies"), ["app"], "it was started again");
        assert!(sim.fake.snapshot().running("goes").is_empty());
        sim.api.come_up();
        sim.until_gone("goes").await;
        sim.pass(s(10)).await;
        let told = sim.record.pod("dies").unwrap();
        let container = &told.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        assert_eq!(container.restart_count, 1);
        assert_eq!(laws::disturbances(&sim, &steady), [""; 0]);
        lawful(&sim);
    });
}
