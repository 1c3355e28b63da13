//! The golden recordings, from posting a pod to its last trace: what the agent does to the runtime
//! and tells the API server is what the upstream kubelet did and told.
//!
//! All cases run side by side on one [`stage`]: real containerd, our agent, our API server, and a
//! tap on the line to the runtime. A [`performance`] of a case and its [`recording`] are both told
//! as an [`account`]; [`calls`] and [`story`] compare what depends on time with a rule, the rest
//! is compared as it is. [`meant`] has every difference that we mean. What the node's server shows
//! meanwhile is compared by [`pages`].
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their folder.

mod account;
mod calls;
mod cgroups;
mod chronicle;
mod difference;
mod meant;
mod names;
mod pages;
mod performance;
mod recording;
mod stage;
mod story;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use futures::future::join_all;
use podwright_testkit::report;

use crate::privilege::{LONGER, needs_root, skipped};
use difference::Difference;
use performance::perform;
use recording::Recording;
use stage::Stage;

/// Cases that are not matched yet, and what each waits for. A case that comes to match leaves.
const OPEN: [(&str, &str); 0] = [];

/// How long anything may take: the longest wait of a case is for a second back-off, and the machine
/// may be busy.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long to wait for what is known not to come.
const LITTLE_PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_live_as_recorded() {
    needs_root!(LONGER);
    let Some(golden) = report::recordings() else { return };
    if !cgroups::are_as_recorded() {
        return skipped("the recordings are of cgroup v1, and this machine has v2");
    }
    let recordings = Recording::all(&golden).unwrap();
    let mut open = BTreeMap::from(OPEN);
    let patience = |recording: &Recording| {
        let is_open = open.contains_key(recording.name.as_str());
        if is_open { LITTLE_PATIENCE } else { PATIENCE }
    };
    let stage = Stage::set().await.unwrap();
    // What a resize is granted depends on who else is there, so nobody is.
    let (resizes, others): (Vec<_>, Vec<_>) = recordings.iter().partition(|r| r.is_resized());
    let mut verdicts: Vec<(&Recording, Vec<Difference>)> = Vec::new();
    for together in resizes.chunks(1).chain([others.as_slice()]) {
        let performances = together.iter().map(|recording| async {
            (*recording, perform(&stage, recording, patience(recording)).await)
        });
        verdicts.extend(join_all(performances).await);
    }
    stage.strike();
    // On a busy machine a deletion can fall into the next restart. What differs alone as well is
    // wrong; what matches then is unsteady, and counts as such.
    for (recording, differences) in &mut verdicts {
        if !differences.is_empty() && !open.contains_key(recording.name.as_str()) {
            let stage = Stage::set().await.unwrap();
            let beside = std::mem::replace(differences, perform(&stage, recording, PATIENCE).await);
            stage.strike();
            if differences.is_empty() {
                let first = beside.first().map(ToString::to_string).unwrap_or_default();
                report::unsteady(&recording.name, &format!("differed beside others: {first}"));
            }
        }
    }
    let (mut matched, mut wrong) = (0, String::new());
    for (recording, differences) in verdicts {
        match (differences.is_empty(), open.remove(recording.name.as_str())) {
            (true, None) => matched += 1,
            (false, Some(_)) => {}
            (true, Some(why)) => {
                let name = &recording.name;
                let _ = writeln!(wrong, "\n{name}: matches now, take it off the table ({why})");
            }
            (false, None) => {
                let _ = writeln!(wrong, "\n{}: {}", recording.name, recording.about);
                for difference in &differences {
                    let _ = write!(wrong, "{difference}");
                }
            }
        }
    }
    for name in open.keys() {
        let _ = writeln!(wrong, "\n{name}: on the table, and there is no such recording");
    }
    report::golden("pods", matched, recordings.len());
    assert!(wrong.is_empty(), "{wrong}");
}
