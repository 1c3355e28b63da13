//! Debug socket: explains the state of pods to local users and accepts the request to stop all
//! pods.
//!
//! HTTP over a Unix socket in the root directory that only its owner may open: any tool can use it,
//! nothing listens on a network, and more requests are more paths. A response is computed on
//! request from the inputs of the next decision; no state is kept for it.
//!
//! | path | response |
//! |---|---|
//! | `/node` | why the node is Ready or not, and which pods are stuck: a [`NodeExplanation`] |
//! | `/pods` | all pods: [`PodLine`]s |
//! | `/reasons` | why each pod is in its state, in one line: [`PodReason`]s |
//! | `/pods/{uid}/why` | an [`Explanation`] |
//! | `/pods/{uid}/case` | the inputs of the next decision, secrets masked |
//! | `/manifests` | problems of manifest files: [`ManifestProblem`]s |
//! | `/events` | the last events of the agent: [`RecentEvent`]s |
//! | `/kubelet/…` | pods, statistics and container logs, as the kubelet server has them |
//! | `/evictions` | how far away each eviction threshold is, and which pods would go first: a [`Forecast`] |
//! | `/stop` | the pods that have not stopped yet: [`StoppingPods`]; a POST stops all pods |

mod evidence;
mod explanation;
mod kubelet;
mod node;
mod reasons;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use podwright_core::backoff::BackoffLimits;
use podwright_core::eviction::Forecast;
use podwright_core::explain::pending::{self, PendingReason};
use podwright_core::ids::PodUid;
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{Case, LocalState};
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::{Pod, hold};
use podwright_core::time::Stopwatch;
use podwright_host::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::eviction::EvictionManager;
use crate::pods::admission::Admission;
use crate::pods::allocations::Allocations;
use crate::pods::pod_handle::PodHandle;
use crate::pods::{PodIndex, StoppingPods};
use crate::report::events::{RecentEvent, RecentEvents};
use crate::report::status::StatusManager;
use crate::resources::cgroups::Cgroups;
use crate::runtime::pleg::Pleg;
use crate::runtime::state::NodeState;
use crate::sources::problems::{ManifestProblem, ManifestProblems};

pub use evidence::{Evidence, EvidenceSources};
pub use explanation::{
    ContainerLine, EndedLine, ExitLine, Explanation, FailedOperation, ProbeLine, VolumeLine,
};
pub use kubelet::LocalServer;
pub use node::{ConditionLine, NodeExplanation};
pub use reasons::PodReason;

/// File name of the socket in the root directory.
pub const SOCKET: &str = "podwright.sock";

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on the debug socket {path}. Fix: stop other agents that use this root directory"
)]
pub struct BindError {
    path: PathBuf,
    source: io::Error,
}

/// A pod in the list of pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLine {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    /// The name of a static pod in its manifest.
    #[serde(rename = "manifest")]
    pub manifest: Option<String>,
    #[serde(rename = "uid")]
    pub uid: String,
    /// The UID of its mirror pod.
    #[serde(rename = "mirror")]
    pub mirror: Option<String>,
}

/// Where the inputs of a decision are read.
pub struct CaseSources {
    pub pleg: Arc<Pleg>,
    pub clock: Clock,
    pub status: Arc<StatusManager>,
    pub cgroups: Arc<Cgroups>,
    pub allocations: Arc<Allocations>,
    pub node: watch::Receiver<NodeState>,
    pub crash_backoff: BackoffLimits,
    pub features: PodFeatures,
}

/// The components of the node that the debug socket shows.
pub struct DebugSocketDependencies {
    pub pod_index: Arc<PodIndex>,
    pub admission: Arc<Admission>,
    pub node_name: Arc<str>,
    pub evictions: Arc<EvictionManager>,
    pub cases: CaseSources,
    pub evidence: EvidenceSources,
    pub manifests: ManifestProblems,
    pub events: RecentEvents,
    pub kubelet: LocalServer,
}

/// Binds the socket; the returned future serves requests until stopped.
pub fn serve(
    root: &Path,
    dependencies: DebugSocketDependencies,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, BindError> {
    let path = root.join(SOCKET);
    let listener = listen(root).map_err(|source| BindError { path: path.clone(), source })?;
    let socket = Arc::new(dependencies);
    let router = Router::new()
        .route("/node", get(node::node))
        .route("/pods", get(pods))
        .route("/reasons", get(reasons::reasons))
        .route("/manifests", get(manifests))
        .route("/events", get(recent_events))
        .route("/kubelet/{*path}", get(kubelet::forward))
        .route("/pods/{uid}/why", get(why))
        .route("/pods/{uid}/case", get(case))
        .route("/evictions", get(evictions))
        .route("/stop", get(stopping).post(stop_pods))
        .with_state(socket);
    Ok(async move {
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::warn!(%error, "serve debug socket failed, `podwright why` is not available");
        }
        // A socket without a listener would only confuse clients.
        let _ = fs::remove_file(path);
    })
}

/// Connects to the agent with this root directory.
pub async fn connect(root: &Path) -> io::Result<UnixStream> {
    let dir = File::open(root)?;
    UnixStream::connect(within(&dir)).await
}

fn listen(root: &Path) -> io::Result<UnixListener> {
    let path = root.join(SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let dir = File::open(root)?;
    let listener = UnixListener::bind(within(&dir))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The socket path through a file descriptor: a socket address holds only 108 bytes.
fn within(dir: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(SOCKET)
}

impl DebugSocketDependencies {
    /// The pod with this UID, which may be the UID of its mirror pod.
    fn handle(&self, uid: &str) -> Option<Arc<PodHandle>> {
        let known = self.pod_index.resolve(uid).and_then(|pod| self.pod_index.handle(&pod.uid));
        // A pod that no source names may still be terminating.
        known.or_else(|| self.pod_index.handle(&PodUid::new(uid)))
    }

    /// What a pod needs and the node does not have, beside its other pods.
    fn missing(&self, pod: &Pod) -> Vec<PendingReason> {
        let own_node = self.admission.own_node();
        let Some(node) = own_node.borrow().object().cloned() else { return Vec::new() };
        let pods = self.pod_index.pods();
        let counts = |other: &&Arc<Pod>| {
            other.uid != pod.uid
                && !other.api_phase.is_terminal()
                && matches!(self.admission.earlier_decision(&other.uid), Some(Ok(())))
        };
        let others: Vec<&Arc<Pod>> = pods.iter().filter(counts).collect();
        pending::reasons(pod, &others, &node)
    }

    fn lines(&self) -> Vec<PodLine> {
        let handles = self.pod_index.handles();
        // Pods that were not admitted have no handle.
        let others = self.pod_index.pods().into_iter();
        let others = others.filter(|pod| self.pod_index.handle(&pod.uid).is_none());
        let pods = handles.iter().map(|(_, handle)| handle.pod()).chain(others);
        let mut lines: Vec<PodLine> = pods.map(|pod| self.line(&pod)).collect();
        lines.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        lines
    }

    fn line(&self, pod: &Pod) -> PodLine {
        let suffix = format!("-{}", self.node_name);
        let manifest = pod.name.name.strip_suffix(suffix.as_str()).filter(|_| pod.is_static());
        let mirror = self.pod_index.mirror_of(pod).map(|mirror| mirror.uid.to_string());
        PodLine {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            manifest: manifest.map(str::to_owned),
            uid: pod.uid.to_string(),
            mirror,
        }
    }
}

impl CaseSources {
    /// The inputs of the next decision about this pod.
    async fn case(&self, handle: &PodHandle) -> Case {
        let desired = handle.desired().borrow().clone();
        let pod = desired.pod;
        let cgroup = self.cgroups.shows_pod(&pod).await;
        let network = self.node.borrow().network.clone();
        let now = self.clock.now();
        let observed = self.pleg.cached(&pod.uid);
        let unseen = || ObservedPod::nothing(pod.uid.clone(), pod.name.clone(), now.mono);
        let probed = handle.probed().borrow().clone();
        let reported = self.status.last_report(&pod);
        let first_report = reported.as_deref().and_then(|status| status.start_time.as_ref());
        let local_state = LocalState {
            network,
            cgroup,
            hold: hold::current_hold(&pod),
            active: first_report.map(|time| Stopwatch::running_since(time.0, now)),
            resizing: self.allocations.resizing(&pod.uid),
            features: self.features,
        };
        Case {
            observed: observed.map_or_else(unseen, |seen| ObservedPod::clone(&seen)),
            attempts: handle.attempts.lock().clone(),
            lifecycle: desired.lifecycle,
            probed,
            local_state,
            crash_backoff: self.crash_backoff,
            now,
            pod: (*pod).clone(),
        }
    }
}

async fn pods(State(socket): State<Arc<DebugSocketDependencies>>) -> Json<Vec<PodLine>> {
    Json(socket.lines())
}

async fn why(
    State(socket): State<Arc<DebugSocketDependencies>>,
    UrlPath(uid): UrlPath<String>,
) -> Result<Json<Explanation>, StatusCode> {
    let Some(handle) = socket.handle(&uid) else {
        let pod = socket.pod_index.resolve(&uid).ok_or(StatusCode::NOT_FOUND)?;
        let (outcome, now) =
            (socket.admission.earlier_decision(&pod.uid), socket.cases.clock.now().wall);
        let pending = match outcome {
            Some(Err(_)) => socket.missing(&pod),
            Some(Ok(())) | None => Vec::new(),
        };
        let status = socket.cases.status.last_report(&pod);
        let status = status.as_deref();
        return Ok(Json(Explanation::without_a_worker(&pod, outcome, status, pending, now)));
    };
    let case = socket.cases.case(&handle).await;
    let evidence = socket.evidence.read(&case, &handle, &socket.cases.status).await;
    let journal = handle.journal.lock().clone();
    Ok(Json(Explanation::of(&case, &journal, &evidence)))
}

async fn manifests(
    State(socket): State<Arc<DebugSocketDependencies>>,
) -> Json<Vec<ManifestProblem>> {
    Json(socket.manifests.list())
}

async fn recent_events(
    State(socket): State<Arc<DebugSocketDependencies>>,
) -> Json<Vec<RecentEvent>> {
    Json(socket.events.list())
}

async fn case(
    State(socket): State<Arc<DebugSocketDependencies>>,
    UrlPath(uid): UrlPath<String>,
) -> Result<Json<Case>, StatusCode> {
    let handle = socket.handle(&uid).ok_or(StatusCode::NOT_FOUND)?;
    let case = socket.cases.case(&handle).await;
    case.masked().map(Json).map_err(|error| {
        tracing::warn!(%error, "mask decision inputs failed");
        StatusCode::INTERNAL_SERVER_ERROR
    })
}

async fn evictions(State(socket): State<Arc<DebugSocketDependencies>>) -> Json<Forecast> {
    Json(socket.evictions.forecast().await)
}

/// Used by `podwright down`; idempotent.
async fn stop_pods(State(socket): State<Arc<DebugSocketDependencies>>) -> Json<StoppingPods> {
    socket.pod_index.stop_pods();
    stopping(State(socket)).await
}

async fn stopping(State(socket): State<Arc<DebugSocketDependencies>>) -> Json<StoppingPods> {
    Json(StoppingPods::of(&socket.cases.pleg, &socket.pod_index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_works_below_a_long_path_and_only_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        let _first = listen(&deep).unwrap();
        // An agent that was killed left its socket behind.
        let listener = listen(&deep).unwrap();
        let mode = fs::metadata(deep.join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (accepted, connected) = tokio::join!(listener.accept(), connect(&deep));
        assert!(accepted.is_ok() && connected.is_ok());
    }
}
