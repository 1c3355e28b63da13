//! One pod's life, undisturbed.

use std::time::Duration;

use podwright_testkit::sim::wish::{APP, INIT, wish};
use podwright_testkit::sim::{self, Options, Sim, laws};

#[test]
fn a_pod_with_all_kinds_of_containers_lives_and_leaves_nothing_behind() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let pod = wish("web").init("first", INIT).sidecar("side", APP);
        sim.create(&pod.container("a", APP).container("b", APP)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(Duration::from_secs(5)).await;
        assert_eq!(laws::leftovers(&sim, &[]), [""; 0]);
        assert_eq!(laws::broken(&sim), [""; 0]);
    });
}
