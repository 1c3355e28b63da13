//! The wall clock is stepped, and no pod notices.

use jiff::SignedDuration;
use podwright_testkit::sim::wish::{APP, STUBBORN, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;

use crate::{lawful, phases, s};

#[test]
fn a_step_of_an_hour_either_way_harms_no_pod() {
    for hours in [1, -1] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let uid = sim.create(&wish("web").container("app", APP)).await;
            let timed = wish("timed").container("app", APP);
            let timed = timed.edit(|pod| pod["spec"]["activeDeadlineSeconds"] = json!(600));
            let deadline = sim.create(&timed).await;
            sim.until_ready("web").await;
            sim.until_ready("timed").await;
            sim.clock.step_wall(SignedDuration::from_hours(hours));
            sim.patch("timed", json!({ "metadata": { "labels": { "a": "b" } } })).await;
            sim.pass(s(300)).await;
            for uid in [&uid, &deadline] {
                assert_eq!(laws::disturbances(&sim, uid), [""; 0], "{hours} h");
            }
            // The deadline ends the pod when it is due, by our own clock.
            sim.pass(s(310)).await;
            let seen = sim.record.of(&deadline);
            assert_eq!(phases(&seen).last(), Some(&"Failed"), "{hours} h");
            lawful(&sim);
        });
    }
}

#[test]
fn a_step_while_a_pod_stops_does_not_change_its_grace() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").grace(20).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        sim.clock.step_wall(SignedDuration::from_hours(1));
        sim.pass(s(15)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.pass(s(8)).await;
        assert!(sim.record.pod("web").is_none());
        assert!(record::phase(&sim.record.sightings().last().unwrap().pod).is_terminal());
    });
}
