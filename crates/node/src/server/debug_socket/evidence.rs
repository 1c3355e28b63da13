//! Facts for an explanation that are not inputs of a decision, read when somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_core::attempts::StartError;
use podwright_core::explain::excerpt;
use podwright_core::plan::Case;
use podwright_core::probe::answers::ProbeAnswers;
use podwright_core::volume;
use podwright_cri as cri;

use super::explanation::VolumeLine;
use crate::pods::pod_handle::PodHandle;
use crate::report::status::StatusManager;
use crate::resources::volumes::Volumes;
use crate::runtime::logs::Logs;

/// Lines of the log of a container that ended, and their length.
const LOG_LINES: u64 = 5;
const LINE_LENGTH: usize = 300;
/// Containers whose log or image is read, so that a pod with hundreds of them is explained fast.
const MAX_READS: usize = 16;

/// What is known of a pod besides the inputs of its next decision.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub answers: ProbeAnswers,
    /// The status as it was last reported.
    pub reported: Option<Arc<v1::PodStatus>>,
    /// Images of waiting containers that the node has.
    pub images_on_node: BTreeSet<Arc<str>>,
    /// The last lines of containers that ended.
    pub logs: BTreeMap<Arc<str>, Vec<String>>,
    /// The volumes that are not ready.
    pub volumes: Vec<VolumeLine>,
}

/// Where evidence is read.
pub struct EvidenceSources {
    pub runtime: cri::Client,
    pub logs: Logs,
    pub volumes: Arc<Volumes>,
}

impl Evidence {
    pub(super) fn log(&self, container: &str) -> &[String] {
        self.logs.get(container).map(Vec::as_slice).unwrap_or_default()
    }
}

impl EvidenceSources {
    pub(super) async fn read(
        &self,
        case: &Case,
        handle: &PodHandle,
        status: &StatusManager,
    ) -> Evidence {
        let (images_on_node, logs) = tokio::join!(self.images(case), self.logs(case));
        Evidence {
            answers: handle.answers.lock().clone(),
            reported: status.last_report(&case.pod),
            images_on_node,
            logs,
            volumes: self.volumes(case),
        }
    }

    /// The images that could not be pulled and are on the node nevertheless.
    async fn images(&self, case: &Case) -> BTreeSet<Arc<str>> {
        let failed = case.pod.containers.iter().filter(|container| {
            let failure = case.attempts.start_failure(&container.name, container.backoff_key);
            failure.is_some_and(|failure| {
                failure.reason.is_failed_pull()
                    || failure.reason == StartError::ImagePullBackOff
                    || failure.reason == StartError::ErrImageNeverPull
            })
        });
        let mut found = BTreeSet::new();
        for container in failed.take(MAX_READS) {
            if matches!(self.runtime.image_status(&container.image).await, Ok(Some(_))) {
                found.insert(container.image.clone());
            }
        }
        found
    }

    async fn logs(&self, case: &Case) -> BTreeMap<Arc<str>, Vec<String>> {
        let mut logs = BTreeMap::new();
        let mut reads = 0;
        for container in &case.pod.containers {
            let Some(ended) = case.observed.last_exited(&container.name) else { continue };
            // An init container that did its work is of no interest.
            let failed = ended.exit().is_some_and(podwright_core::observed::Exit::failed);
            if container.kind.is_init() && !failed {
                continue;
            }
            reads += 1;
            if reads > MAX_READS {
                break;
            }
            match self.logs.tail(ended, LOG_LINES).await {
                Ok(lines) => {
                    let lines = lines.iter().map(|line| excerpt(line, LINE_LENGTH)).collect();
                    logs.insert(container.name.clone(), lines);
                }
                // Its log may have been rotated away or removed; that is no reason to explain less.
                Err(error) => {
                    tracing::debug!(%error, container = %container.name, "read log failed");
                }
            }
        }
        logs
    }

    fn volumes(&self, case: &Case) -> Vec<VolumeLine> {
        // Containers only run with all their volumes.
        if case.lifecycle.is_ending() || case.observed.running().next().is_some() {
            return Vec::new();
        }
        let ready = self.volumes.mounted(&case.pod.uid);
        // The image of a volume is pulled when a container is created.
        let mounted = volume::used(&case.pod).filter(|volume| volume.image.is_none());
        let missing = mounted.filter(|volume| !ready.contains_key(&volume.name));
        let line = |volume: &v1::Volume| VolumeLine {
            name: volume.name.clone(),
            source: volume::source_text(volume),
        };
        missing.map(line).collect()
    }
}
