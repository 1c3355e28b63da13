//! Explanation of the node: whether it is Ready and why not, and what is stuck on it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use podwright_core::eviction::Forecast;
use podwright_core::explain::node;
use serde::{Deserialize, Serialize};

use super::{DebugSocketDependencies, PodReason};
use crate::report::heartbeat::problems;
use crate::sources::problems::ManifestProblem;

/// The response to `podwright why --node`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeExplanation {
    #[serde(rename = "name")]
    pub name: String,
    /// The agent sees no reason why the node could not run pods, and neither does the API server.
    #[serde(rename = "ready")]
    pub ready: bool,
    #[serde(rename = "why")]
    pub why: String,
    #[serde(rename = "fix")]
    pub fix: Option<String>,
    /// As the API server shows them; empty without one.
    #[serde(rename = "conditions")]
    pub conditions: Vec<ConditionLine>,
    /// Pods of this node.
    #[serde(rename = "pods")]
    pub pods: usize,
    /// The pods that need attention, or wait longer than usual.
    #[serde(rename = "stuck")]
    pub stuck: Vec<PodReason>,
    #[serde(rename = "manifests")]
    pub manifests: Vec<ManifestProblem>,
    /// How far away each eviction threshold is, which costs a measurement of all pods: only on
    /// request, see `/evictions`.
    #[serde(rename = "evictions", default, skip_serializing_if = "Option::is_none")]
    pub evictions: Option<Forecast>,
    #[serde(rename = "asOf")]
    pub as_of: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionLine {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "status")]
    pub status: String,
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
    #[serde(rename = "since")]
    pub since: Option<Timestamp>,
}

pub(super) async fn node(
    State(socket): State<Arc<DebugSocketDependencies>>,
) -> Json<NodeExplanation> {
    Json(socket.explain_node())
}

impl DebugSocketDependencies {
    fn explain_node(&self) -> NodeExplanation {
        let stale = self.cases.pleg.unhealthy();
        let own = problems(&self.cases.node.borrow(), stale, self.admission.is_shutting_down());
        let conditions = self.conditions();
        let shown = conditions.iter().find(|it| it.kind == "Ready").map(|it| it.status.as_str());
        let (why, fix) = match (own.as_slice(), node::reported(shown)) {
            ([], Some((why, fix))) => (why.to_owned(), Some(fix.to_owned())),
            (problems, _) => node::readiness(problems),
        };
        let reasons = self.reasons();
        NodeExplanation {
            name: self.node_name.to_string(),
            ready: own.is_empty() && node::reported(shown).is_none(),
            why,
            fix,
            conditions,
            pods: reasons.len(),
            stuck: reasons.into_iter().filter(|reason| reason.stuck).collect(),
            manifests: self.manifests.list(),
            evictions: None,
            as_of: self.cases.clock.now().wall,
        }
    }

    fn conditions(&self) -> Vec<ConditionLine> {
        let own_node = self.admission.own_node();
        let object = own_node.borrow().object().cloned();
        let status = object.as_ref().and_then(|node| node.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let line = |it: &k8s_openapi::api::core::v1::NodeCondition| ConditionLine {
            kind: it.type_.clone(),
            status: it.status.clone(),
            reason: it.reason.clone().unwrap_or_default(),
            message: it.message.clone().unwrap_or_default(),
            since: it.last_transition_time.as_ref().map(|time| time.0),
        };
        conditions.into_iter().flatten().map(line).collect()
    }
}
