//! Golden recordings, from the creation of a pod to its removal: the agent's runtime calls and
//! reports must match those of the upstream kubelet.
//!
//! All cases run concurrently on one [`golden_node`]: real containerd, Podwright's agent and
//! embedded API server, and a proxy in front of the runtime. A [`replay`] of a case and its
//! [`recording`] both yield an [`observation`]; [`calls`] and [`transitions`] compare
//! time-dependent parts by rules, the rest is compared exactly. [`intended`] lists every intended
//! difference. [`pages`] compares the responses of the kubelet server.
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their directory.

mod calls;
mod cgroups;
mod difference;
mod golden_node;
mod history;
mod intended;
mod names;
mod observation;
mod pages;
mod recording;
mod replay;
mod transitions;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use futures::future::join_all;
use podwright_testkit::report;

use crate::privilege::{LONGER, needs_root, skipped};
use difference::Difference;
use golden_node::GoldenNode;
use recording::Recording;
use replay::replay_case;

/// Cases that do not match yet, each with the reason. A case that matches must be removed.
const OPEN: [(&str, &str); 0] = [];

/// Time limit of any wait: the longest one is for a second back-off, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(240);
/// Time limit for something that is known not to happen.
const SHORT_LIMIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_behave_as_recorded() {
    needs_root!(LONGER);
    let Some(golden) = report::recordings() else { return };
    if !cgroups::are_as_recorded() {
        return skipped("the recordings are for cgroup v1, this machine has v2");
    }
    let recordings = Recording::all(&golden).unwrap();
    let mut open = BTreeMap::from(OPEN);
    let limit = |recording: &Recording| {
        let is_open = open.contains_key(recording.name.as_str());
        if is_open { SHORT_LIMIT } else { LIMIT }
    };
    let golden_node = GoldenNode::start().await.unwrap();
    // The outcome of a resize depends on the other pods, so these run alone.
    let (resizes, others): (Vec<_>, Vec<_>) = recordings.iter().partition(|r| r.is_resized());
    let mut verdicts: Vec<(&Recording, Vec<Difference>)> = Vec::new();
    for together in resizes.chunks(1).chain([others.as_slice()]) {
        let performances = together.iter().map(|recording| async {
            (*recording, replay_case(&golden_node, recording, limit(recording)).await)
        });
        verdicts.extend(join_all(performances).await);
    }
    golden_node.close();
    // On a busy machine a deletion can coincide with a restart. A case that also differs alone is
    // wrong; one that matches alone is unsteady and counted as such.
    for (recording, differences) in &mut verdicts {
        if !differences.is_empty() && !open.contains_key(recording.name.as_str()) {
            let golden_node = GoldenNode::start().await.unwrap();
            let beside =
                std::mem::replace(differences, replay_case(&golden_node, recording, LIMIT).await);
            golden_node.close();
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
                let _ = writeln!(wrong, "\n{name}: matches now, remove it from OPEN ({why})");
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
        let _ = writeln!(wrong, "\n{name}: in OPEN, but there is no such recording");
    }
    report::golden("pods", matched, recordings.len());
    assert!(wrong.is_empty(), "{wrong}");
}
