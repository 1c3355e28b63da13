//! Questions about pods that people on this machine put to the running agent, and the one request:
//! to stop all pods before the node goes.
//!
//! HTTP over a socket in the root folder that only its owner may open: any tool can ask, nothing
//! listens on a network, and further questions are further paths. Nothing is kept for it. An
//! answer is made when it is asked for, from what the next decision would be made from.
//!
//! | path | answer |
//! |---|---|
//! | `/pods` | who is here: [`PodLine`]s |
//! | `/pods/{uid}/why` | an [`Explanation`] |
//! | `/pods/{uid}/case` | the inputs of the decision as it would be made now, secrets masked |
//! | `/stop` | which pods have not stopped yet: [`StoppingPods`]; a POST asks them to |

mod explanation;

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
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{Case, Surroundings};
use podwright_core::pod::{Pod, hold};
use podwright_core::time::Stopwatch;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::cell::PodCell;
use crate::pods::{Directory, StoppingPods};
use crate::tools::Tools;

pub use explanation::{ContainerLine, Explanation, Failed};

/// The socket's name in the root folder.
pub const SOCKET: &str = "podwright.sock";

#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {path} for `podwright why`; is another agent using this root folder?")]
pub struct BindError {
    path: PathBuf,
    source: io::Error,
}

/// A pod as it is looked up by people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLine {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    /// What its manifest calls a static pod.
    #[serde(rename = "manifest")]
    pub manifest: Option<String>,
    #[serde(rename = "uid")]
    pub uid: String,
    /// The UID of its mirror in the API.
    #[serde(rename = "mirror")]
    pub mirror: Option<String>,
}

/// Takes the socket; the returned future answers until stopped.
pub fn serve(
    root: &Path,
    directory: Arc<Directory>,
    tools: Arc<Tools>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, BindError> {
    let path = root.join(SOCKET);
    let listener = listen(root).map_err(|source| BindError { path: path.clone(), source })?;
    let inquiry = Arc::new(Inquiry { directory, tools });
    let router = Router::new()
        .route("/pods", get(pods))
        .route("/pods/{uid}/why", get(why))
        .route("/pods/{uid}/case", get(case))
        .route("/stop", get(stopping).post(stop_pods))
        .with_state(inquiry);
    Ok(async move {
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::warn!(%error, "questions about pods are no longer answered");
        }
        // A socket that nobody listens at tells people less than none.
        let _ = fs::remove_file(path);
    })
}

/// Connects to the agent whose root folder this is.
pub async fn connect(root: &Path) -> io::Result<UnixStream> {
    let folder = File::open(root)?;
    UnixStream::connect(within(&folder)).await
}

fn listen(root: &Path) -> io::Result<UnixListener> {
    let path = root.join(SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let folder = File::open(root)?;
    let listener = UnixListener::bind(within(&folder))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The socket by way of its folder: a socket's address has room for 108 bytes, a path may be longer.
fn within(folder: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(SOCKET)
}

struct Inquiry {
    directory: Arc<Directory>,
    tools: Arc<Tools>,
}

impl Inquiry {
    /// The pod a UID means, be it a mirror's.
    fn cell(&self, uid: &str) -> Option<Arc<PodCell>> {
        let known = self.directory.resolve(uid).and_then(|pod| self.directory.cell(&pod.uid));
        let cells = || self.directory.cells().into_iter();
        // One that no source names any more may still be ending.
        known.or_else(|| cells().find(|(own, _)| own.as_str() == uid).map(|(_, cell)| cell))
    }

    fn lines(&self) -> Vec<PodLine> {
        let cells = self.directory.cells();
        // Those that were not admitted have no cell.
        let others = self.directory.pods().into_iter();
        let others = others.filter(|pod| !cells.iter().any(|(uid, _)| *uid == pod.uid));
        let pods = cells.iter().map(|(_, cell)| cell.pod()).chain(others);
        let mut lines: Vec<PodLine> = pods.map(|pod| self.line(&pod)).collect();
        lines.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        lines
    }

    fn line(&self, pod: &Pod) -> PodLine {
        let suffix = format!("-{}", self.tools.settings.node_name);
        let manifest = pod.name.name.strip_suffix(suffix.as_str()).filter(|_| pod.is_static());
        let mirror = self.directory.mirror_of(pod).map(|mirror| mirror.uid.to_string());
        PodLine {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            manifest: manifest.map(str::to_owned),
            uid: pod.uid.to_string(),
            mirror,
        }
    }

    /// What a decision on this pod would be made from now.
    async fn case(&self, cell: &PodCell) -> Case {
        let desired = cell.desired().borrow().clone();
        let (pod, tools) = (desired.pod, &self.tools);
        let cgroup = tools.cgroups.shows_pod(&pod).await;
        let network = tools.node.borrow().network.clone();
        let now = tools.clock.now();
        let observed = tools.pleg.cached(&pod.uid);
        let unseen = || ObservedPod::nothing(pod.uid.clone(), pod.name.clone(), now.mono);
        let probed = cell.probed().borrow().clone();
        let reported = tools.status.last_report(&pod);
        let first_report = reported.as_deref().and_then(|status| status.start_time.as_ref());
        let surroundings = Surroundings {
            network,
            cgroup,
            hold: hold::objection(&pod),
            active: first_report.map(|time| Stopwatch::running_since(time.0, now)),
            resizing: tools.allocations.resizing(&pod.uid),
        };
        Case {
            observed: observed.map_or_else(unseen, |seen| ObservedPod::clone(&seen)),
            attempts: cell.attempts.lock().clone(),
            life: desired.life,
            probed,
            surroundings,
            crash_backoff: tools.settings.crash_backoff,
            now,
            pod: (*pod).clone(),
        }
    }
}

async fn pods(State(inquiry): State<Arc<Inquiry>>) -> Json<Vec<PodLine>> {
    Json(inquiry.lines())
}

async fn why(
    State(inquiry): State<Arc<Inquiry>>,
    UrlPath(uid): UrlPath<String>,
) -> Result<Json<Explanation>, StatusCode> {
    let Some(cell) = inquiry.cell(&uid) else {
        let pod = inquiry.directory.resolve(&uid).ok_or(StatusCode::NOT_FOUND)?;
        let (outcome, now) =
            (inquiry.tools.admission.earlier(&pod.uid), inquiry.tools.clock.now().wall);
        return Ok(Json(Explanation::without_a_worker(&pod, outcome, now)));
    };
    let case = inquiry.case(&cell).await;
    let journal = cell.journal.lock().clone();
    Ok(Json(Explanation::of(&case, &journal)))
}

async fn case(
    State(inquiry): State<Arc<Inquiry>>,
    UrlPath(uid): UrlPath<String>,
) -> Result<Json<Case>, StatusCode> {
    let cell = inquiry.cell(&uid).ok_or(StatusCode::NOT_FOUND)?;
    let case = inquiry.case(&cell).await;
    case.masked().map(Json).map_err(|error| {
        tracing::warn!(%error, "cannot record a case");
        StatusCode::INTERNAL_SERVER_ERROR
    })
}

/// `podwright down` asks; asking twice changes nothing.
async fn stop_pods(State(inquiry): State<Arc<Inquiry>>) -> Json<StoppingPods> {
    inquiry.directory.stop_pods();
    stopping(State(inquiry)).await
}

async fn stopping(State(inquiry): State<Arc<Inquiry>>) -> Json<StoppingPods> {
    Json(StoppingPods::of(&inquiry.tools, &inquiry.directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_works_below_a_deep_folder_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(120));
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
