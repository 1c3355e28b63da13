//! Giving running containers, and the pod around them, what was granted.

use std::sync::Arc;

use podwright_core::attempts::PodStep;
use podwright_core::cgroup::CgroupConfig;
use podwright_core::config::ConfigError;
use podwright_core::config::resources::{Placement, of_container, of_sandbox};
use podwright_core::plan;
use podwright_core::pod::BadPod;
use podwright_core::resize::acts::{self, Act, MemoryUse, Resource};
use podwright_core::resize::grant::{summary, with_amounts};
use podwright_core::resize::{Amounts, Resize, Update};
use podwright_proto::cri::UpdatePodSandboxResourcesRequest;

use super::execute::{Execution, Failed};
use crate::causes::chain;
use crate::cgroups::{Group, PodCgroupError};
use crate::events::Severity;

#[derive(Debug, thiserror::Error)]
enum ResizeError {
    #[error(transparent)]
    Cgroup(#[from] PodCgroupError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Pod(#[from] BadPod),
    #[error("{0}")]
    Refused(String),
    #[error(
        "failed to notify runtime for UpdatePodSandboxResources (resource={resource}); \
         resize rejected: {problem}"
    )]
    Rejected { resource: &'static str, problem: String },
    #[error("{0}")]
    Runtime(String),
}

impl Execution<'_> {
    pub(super) async fn resize(&mut self, resize: &Resize) -> Result<(), Failed> {
        self.begin("changing the resources of running containers");
        let began = tokio::time::Instant::now();
        let done = self.apply(resize).await;
        self.tools.metrics.resizes.done(done.is_ok(), began.elapsed());
        let Err(error) = done else {
            self.attempts().note_step_done(PodStep::Resize);
            return Ok(());
        };
        let text = chain(&error);
        if self.tools.allocations.note_failure(&self.pod.uid, &text) {
            let resizing = self.tools.allocations.resizing(&self.pod.uid);
            let generation = resizing.progress.as_ref().and_then(|progress| progress.generation);
            let told = summary(self.pod, generation, Some(&text));
            let message = format!("Pod resize error: {told}");
            self.tools.events.pod(self.pod, Severity::Warning, "ResizeError", message);
        }
        self.failed(PodStep::Resize, text)
    }

    async fn apply(&mut self, resize: &Resize) -> Result<(), ResizeError> {
        // An agent that is killed from here on must know what the pod was granted.
        self.tools.allocations.write().await;
        let group = self.tools.cgroups.group(self.pod).await?;
        let (current, wanted) = (&group.current, &group.wanted);
        let (shrinking, whole) = acts::shrinking_memory(resize, current, wanted);
        if whole || !shrinking.is_empty() {
            let usage = self.memory_use(&shrinking).await;
            if let Some(objection) = acts::objection(resize, current, wanted, &usage) {
                return Err(ResizeError::Refused(objection));
            }
        }
        let mut before = current.clone();
        for (resource, acts) in acts::stages(resize, current, wanted) {
            for act in acts {
                match act {
                    Act::Pod { set, then } => {
                        self.set_pod(&group, resource, &set, &before, &then).await?;
                        before = then;
                    }
                    Act::Container { update, now } => self.set_container(&update, now).await?,
                }
            }
            self.tools.allocations.note_whole(self.pod, resource);
        }
        self.tools.cgroups.refresh().await;
        Ok(())
    }

    async fn memory_use(&self, shrinking: &[Update]) -> MemoryUse {
        let mut usage = MemoryUse {
            pod: self.tools.cgroups.memory_of_pod(self.pod).await,
            ..MemoryUse::default()
        };
        for Update { container, instance, .. } in shrinking {
            let used = self.tools.cgroups.memory_of_container(self.pod, instance).await;
            usage.containers.insert(container.clone(), used);
        }
        usage
    }

    /// The runtime is told first: it may refuse. If the kernel then does, it is told to go back.
    async fn set_pod(
        &self,
        group: &Group,
        resource: Resource,
        set: &CgroupConfig,
        before: &CgroupConfig,
        then: &CgroupConfig,
    ) -> Result<(), ResizeError> {
        let rejected = |problem| ResizeError::Rejected { resource: resource.as_str(), problem };
        self.tell_sandbox(group, then).await.map_err(rejected)?;
        let Err(error) = self.tools.cgroups.set(self.pod, set).await else { return Ok(()) };
        if let Err(problem) = self.tell_sandbox(group, before).await {
            tracing::warn!(problem, "the runtime keeps believing in the resize");
        }
        Err(error.into())
    }

    async fn tell_sandbox(&self, group: &Group, now: &CgroupConfig) -> Result<(), String> {
        let Some(sandbox) = plan::usable_sandbox(self.pod, self.view) else { return Ok(()) };
        let overhead = of_sandbox(self.pod, &self.tools.facts, false);
        let (_, overhead) = overhead.map_err(|error| chain(&error))?;
        let request = UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.to_string(),
            overhead: Some(overhead),
            resources: Some(acts::sandbox_resources(now, &group.overhead)),
        };
        let runtime = self.tools.runtime.clone();
        let told = self.lane.run(async move { runtime.update_sandbox_resources(request).await });
        // A runtime that does not know the call does not care.
        told.await.map(drop).map_err(|error| error.rpc_text())
    }

    async fn set_container(&self, update: &Update, now: Amounts) -> Result<(), ResizeError> {
        let pod = match now == update.to {
            true => self.pod.clone(),
            false => Arc::new(with_amounts(self.pod, &update.container, now)?),
        };
        let Some(container) = pod.container(&update.container) else { return Ok(()) };
        let linux = of_container(&pod, container, &self.tools.facts, &Placement::default())?;
        let (runtime, id) = (self.tools.runtime.clone(), update.instance.clone());
        let changed = self
            .lane
            .run(async move { runtime.update_container_resources(&id, linux).await })
            .await;
        changed.map_err(|error| ResizeError::Runtime(error.rpc_text()))?;
        self.tools.allocations.note_applied(&self.pod.uid, &update.container, now);
        Ok(())
    }
}
