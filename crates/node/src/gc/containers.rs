//! Dead containers and sandboxes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use podwright_core::gc::{self, Eviction};
use podwright_core::ids::{PodUid, SandboxId};
use podwright_core::observed::Glance;
use podwright_cri as cri;

use super::{AT_ONCE, Gc, GcError, Place, Reach};
use crate::logs;

/// For a container nobody knows the state of: what pods get at least.
const GRACE: Duration = Duration::from_secs(2);

impl Gc {
    /// One round: containers, then the sandboxes they leave empty, then their logs. Every part is
    /// tried, whatever became of the ones before.
    pub async fn collect(&self, reach: Reach) -> Result<(), GcError> {
        let _alone = self.round.lock().await;
        let seen = self.runtime.leftovers().await.map_err(GcError::List)?;
        let now = self.clock.now().wall;
        let is_over = |pod: &PodUid| self.is_over(pod, reach);
        let evictions = gc::containers(&seen.containers, &self.settings.containers, is_over, now);
        let removed = !evictions.is_empty();
        let mut errors = self.each(evictions, |eviction| self.remove_container(eviction)).await;

        // What was just removed leaves sandboxes empty; an idle node asks only once.
        let seen = match removed {
            true => self.runtime.leftovers().await.map_err(GcError::List)?,
            false => seen,
        };
        let sandboxes = gc::sandboxes(&seen.sandboxes, &seen.containers, is_over);
        errors.extend(self.each(sandboxes, |sandbox| self.remove_sandbox(sandbox)).await);

        let running = seen.containers.iter().filter(|c| c.state == Glance::Running);
        let alive: BTreeSet<&PodUid> = running.map(|c| &c.pod).collect();
        let log_is_over = |pod: &PodUid| !alive.contains(pod) && self.is_over(pod, Reach::Surplus);
        match self.with_logs(Place::log_folders).await {
            Ok(folders) => {
                let over = folders.into_iter().filter(|(_, owner)| log_is_over(owner));
                let over: Vec<OsString> = over.map(|(name, _)| name).collect();
                let removed = self.with_logs(move |place| place.remove_log_folders(&over)).await;
                errors.extend(removed.err());
            }
            Err(error) => errors.push(error),
        }
        let containers = seen.containers;
        let removed = self.with_logs(move |place| place.remove_log_links(&containers)).await;
        errors.extend(removed.err());
        GcError::of(errors)
    }

    async fn each<T, F: Future<Output = Result<(), GcError>>>(
        &self,
        items: Vec<T>,
        act: impl Fn(T) -> F,
    ) -> Vec<GcError> {
        let results = futures::stream::iter(items).map(act).buffer_unordered(AT_ONCE);
        results.filter_map(|result| async { result.err() }).collect().await
    }

    /// The log goes first: with the container the way to it would be lost.
    async fn remove_container(&self, eviction: Eviction) -> Result<(), GcError> {
        let Eviction { id, stop_first } = eviction;
        let failed = |source| GcError::Runtime { what: format!("container {id}"), source };
        let runtime = &self.runtime;
        if stop_first {
            runtime.stop_container(&id, GRACE).await.map_err(failed)?;
        }
        match runtime.container_status(&id, SandboxId::new("")).await {
            Ok(seen) => {
                if let Some(log) = seen.instance.log_path {
                    let removed = self.with_logs(move |place| {
                        Ok(logs::remove_now(&place.pod_logs, Path::new(&log))?)
                    });
                    removed.await?;
                }
            }
            Err(error) if error.kind == cri::Kind::NotFound => return Ok(()),
            // It can be removed all the same; its log goes with the pod's folder.
            Err(error) => tracing::debug!(%error, %id, "cannot tell where its log is"),
        }
        tracing::debug!(%id, "removing a dead container");
        runtime.remove_container(&id).await.map_err(failed)
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<(), GcError> {
        let failed = |source| GcError::Runtime { what: format!("sandbox {id}"), source };
        // It may be dead and still hold its address.
        self.runtime.stop_sandbox(&id).await.map_err(failed)?;
        tracing::debug!(%id, "removing a dead sandbox");
        self.runtime.remove_sandbox(&id).await.map_err(failed)
    }
}
