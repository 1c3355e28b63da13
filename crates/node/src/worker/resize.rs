//! In-place resize: applies granted resources to running containers and the pod cgroup.

use std::sync::Arc;

use podwright_core::attempts::PodStep;
use podwright_core::cgroup::CgroupConfig;
use podwright_core::config::ConfigError;
use podwright_core::config::resources::{Placement, of_container, of_sandbox};
use podwright_core::plan;
use podwright_core::pod::PodParseError;
use podwright_core::resize::actuation::{self, MemoryUse, ResizeStep, Resource};
use podwright_core::resize::allocation::{summary, with_amounts};
use podwright_core::resize::{Amounts, ContainerResize, Resize};
use podwright_proto::cri::UpdatePodSandboxResourcesRequest;

use super::execute::{Execution, Failed};
use crate::error_chain::chain;
use crate::report::events::Severity;
use crate::resources::cgroups::{PodCgroupError, PodCgroupState};

#[derive(Debug, thiserror::Error)]
enum ResizeError {
    #[error(transparent)]
    Cgroup(#[from] PodCgroupError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Pod(#[from] PodParseError),
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
        self.context.reporting.metrics.resizes.done(done.is_ok(), began.elapsed());
        let Err(error) = done else {
            self.attempts().note_step_done(PodStep::Resize);
            return Ok(());
        };
        let text = chain(&error);
        if self.context.resources.allocations.note_failure(&self.pod.uid, &text) {
            let resizing = self.context.resources.allocations.resizing(&self.pod.uid);
            let generation = resizing.progress.as_ref().and_then(|progress| progress.generation);
            let details = summary(self.pod, generation, Some(&text));
            let message = format!("Pod resize error: {details}");
            self.context.reporting.events.pod(self.pod, Severity::Warning, "ResizeError", message);
        }
        self.failed(PodStep::Resize, text)
    }

    async fn apply(&mut self, resize: &Resize) -> Result<(), ResizeError> {
        // The grant must be on disk before it is applied, in case the agent is killed.
        self.context.resources.allocations.write().await;
        let group = self.context.resources.cgroups.group(self.pod).await?;
        let (current, wanted) = (&group.current, &group.wanted);
        let (shrinking, whole) = actuation::shrinking_memory(resize, current, wanted);
        if whole || !shrinking.is_empty() {
            let usage = self.memory_use(&shrinking).await;
            if let Some(objection) = actuation::objection(resize, current, wanted, &usage) {
                return Err(ResizeError::Refused(objection));
            }
        }
        let mut before = current.clone();
        for (resource, steps) in actuation::stages(resize, current, wanted) {
            for step in steps {
                match step {
                    ResizeStep::Pod { set, then } => {
                        self.set_pod(&group, resource, &set, &before, &then).await?;
                        before = then;
                    }
                    ResizeStep::Container { update, now } => {
                        self.set_container(&update, now).await?;
                    }
                }
            }
            self.context.resources.allocations.note_pod_applied(self.pod, resource);
        }
        self.context.resources.cgroups.refresh().await;
        Ok(())
    }

    async fn memory_use(&self, shrinking: &[ContainerResize]) -> MemoryUse {
        let mut usage = MemoryUse {
            pod: self.context.resources.cgroups.memory_of_pod(self.pod).await,
            ..MemoryUse::default()
        };
        for ContainerResize { container, instance, .. } in shrinking {
            let used = self.context.resources.cgroups.memory_of_container(self.pod, instance).await;
            usage.containers.insert(container.clone(), used);
        }
        usage
    }

    /// Updates the sandbox first, because the runtime may refuse; rolls it back if the cgroup write
    /// fails.
    async fn set_pod(
        &self,
        group: &PodCgroupState,
        resource: Resource,
        set: &CgroupConfig,
        before: &CgroupConfig,
        then: &CgroupConfig,
    ) -> Result<(), ResizeError> {
        let rejected = |problem| ResizeError::Rejected { resource: resource.as_str(), problem };
        self.update_sandbox(group, then).await.map_err(rejected)?;
        let Err(error) = self.context.resources.cgroups.set(self.pod, set).await else {
            return Ok(());
        };
        if let Err(problem) = self.update_sandbox(group, before).await {
            tracing::warn!(error = problem, "resize: cannot roll back sandbox resources");
        }
        Err(error.into())
    }

    async fn update_sandbox(
        &self,
        group: &PodCgroupState,
        now: &CgroupConfig,
    ) -> Result<(), String> {
        let Some(sandbox) = plan::usable_sandbox(self.pod, self.view) else { return Ok(()) };
        let overhead = of_sandbox(self.pod, &self.context.facts, false);
        let (_, overhead) = overhead.map_err(|error| chain(&error))?;
        let request = UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.to_string(),
            overhead: Some(overhead),
            resources: Some(actuation::sandbox_resources(now, &group.overhead)),
        };
        let runtime = self.context.runtime.clone();
        let updated =
            self.call_tracker.run(async move { runtime.update_sandbox_resources(request).await });
        // A runtime without this call does not need it.
        updated.await.map(drop).map_err(|error| error.rpc_text())
    }

    async fn set_container(
        &self,
        update: &ContainerResize,
        now: Amounts,
    ) -> Result<(), ResizeError> {
        let pod = match now == update.to {
            true => self.pod.clone(),
            false => Arc::new(with_amounts(self.pod, &update.container, now)?),
        };
        let Some(container) = pod.container(&update.container) else { return Ok(()) };
        let linux = of_container(&pod, container, &self.context.facts, &Placement::default())?;
        let (runtime, id) = (self.context.runtime.clone(), update.instance.clone());
        let changed = self
            .call_tracker
            .run(async move { runtime.update_container_resources(&id, linux).await })
            .await;
        changed.map_err(|error| ResizeError::Runtime(error.rpc_text()))?;
        self.context.resources.allocations.note_applied(&self.pod.uid, &update.container, now);
        Ok(())
    }
}
