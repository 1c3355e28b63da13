//! The reason of each pod in one line, for lists.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use podwright_core::admission::Rejection;
use podwright_core::explain::stuck::is_stuck;
use podwright_core::explain::{readiness, unwell};
use podwright_core::lifecycle::Stage;
use podwright_core::plan::Topic;
use serde::{Deserialize, Serialize};

use super::DebugSocketDependencies;
use crate::pods::pod_handle::PodHandle;

/// Why a pod is in its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReason {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "uid")]
    pub uid: String,
    /// It runs and is ready, or it has completed.
    #[serde(rename = "well")]
    pub well: bool,
    /// It needs attention, or waits longer than usual.
    #[serde(rename = "stuck")]
    pub stuck: bool,
    #[serde(rename = "why")]
    pub why: String,
    #[serde(rename = "since")]
    pub since: Option<Timestamp>,
}

pub(super) async fn reasons(
    State(socket): State<Arc<DebugSocketDependencies>>,
) -> Json<Vec<PodReason>> {
    Json(socket.reasons())
}

impl DebugSocketDependencies {
    pub(super) fn reasons(&self) -> Vec<PodReason> {
        let lines = self.lines().into_iter();
        let reasons = lines.map(|line| {
            let (well, stuck, why, since) = match self.handle(&line.uid) {
                Some(handle) => self.reason_of(&handle),
                None => self.reason_without_a_worker(&line.uid),
            };
            let (namespace, name, uid) = (line.namespace, line.name, line.uid);
            PodReason { namespace, name, uid, well, stuck, why, since }
        });
        reasons.collect()
    }

    fn reason_of(&self, handle: &PodHandle) -> (bool, bool, String, Option<Timestamp>) {
        let decided = handle.journal.lock().why().map(|(why, since)| (why.clone(), since));
        let Some((why, since)) = decided else {
            return (false, false, "waiting for its first decision".to_owned(), None);
        };
        // Its last decision was to release what it had.
        if handle.stage() == Stage::Finished {
            let status = self.cases.status.last_report(&handle.pod());
            let status = status.as_deref().cloned();
            let ended = unwell::reason(&v1::Pod { status, ..v1::Pod::default() });
            let text = ended.clone().unwrap_or_else(|| "finished".to_owned());
            return (ended.is_none(), false, text, Some(since));
        }
        if why.topic == Topic::Runs {
            let pod = handle.pod();
            let status = self.cases.status.last_report(&pod);
            let answers = handle.answers.lock().clone();
            let failing =
                status.and_then(|status| readiness::failing_probe(&pod, &status, &answers));
            if let Some(failing) = failing {
                return (false, true, failing.text, Some(since));
            }
        }
        let age = self.cases.clock.now().wall.duration_since(since).unsigned_abs();
        let stuck = is_stuck(why.topic, Duration::from_secs(age.as_secs()));
        (matches!(why.topic, Topic::Runs | Topic::Over), stuck, why.text, Some(since))
    }

    fn reason_without_a_worker(&self, uid: &str) -> (bool, bool, String, Option<Timestamp>) {
        let known = self.pod_index.resolve(uid);
        let decided = known.and_then(|pod| self.admission.earlier_decision(&pod.uid));
        let (well, why) = match decided {
            Some(Err(Rejection { reason, message })) => {
                (false, format!("rejected: {message} ({reason})"))
            }
            Some(Ok(())) => (true, "finished".to_owned()),
            None => (false, "not admitted yet".to_owned()),
        };
        (well, false, why, None)
    }
}
