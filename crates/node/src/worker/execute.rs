//! Execution of a plan, step by step. It makes no decisions: a failure is recorded as an attempt,
//! and the next plan takes it into account.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use podwright_core::attempts::{self, Attempts, PodStep, StartError};
use podwright_core::config;
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{self, Logs, Plan, Step};
use podwright_core::pod::{Container, Pod};
use podwright_core::start_order::{Rank, StartStep};
use podwright_core::time::Now;

use super::call_tracker::CallTracker;
use super::context::WorkerContext;
use super::start::SandboxContext;
use super::stop::NotStopped;
use crate::error_chain::chain;
use crate::pods::pod_handle::PodHandle;
use crate::report::events::Severity;
use crate::runtime::images::Prefetch;
use crate::runtime::logs;

pub(super) struct Execution<'a> {
    pub context: &'a Arc<WorkerContext>,
    pub handle: &'a Arc<PodHandle>,
    pub pod: &'a Arc<Pod>,
    pub call_tracker: &'a CallTracker,
    pub view: &'a Arc<ObservedPod>,
}

/// A step failed. It can only be created by recording the failure: an unrecorded failure would be
/// retried at once, forever.
pub(super) struct Failed(());

impl Execution<'_> {
    /// Executes the steps; returns whether all succeeded.
    pub(super) async fn carry_out(mut self, plan: &Plan) -> bool {
        let mut sandbox_context = SandboxContext::in_sandbox(self.pod, self.view);
        let (mut all, mut created) = (true, false);
        let _prefetched = self.prefetch(plan);
        for step in &plan.steps {
            created |= matches!(step, Step::CreateSandbox { .. });
            match self.step(step, &mut sandbox_context).await {
                Ok(()) => {}
                Err(Failed(())) if step.continues_after_failure(self.pod) => all = false,
                Err(Failed(())) => {
                    all = false;
                    break;
                }
            }
        }
        if created && config::namespaces::wants_own_users(self.pod) {
            self.context.reporting.metrics.starts.user_namespaced(all);
        }
        all
    }

    async fn step(
        &mut self,
        step: &Step,
        sandbox_context: &mut SandboxContext,
    ) -> Result<(), Failed> {
        match step {
            Step::EnsureCgroup => self.ensure_cgroup().await,
            Step::MakeDirectories => self.make_directories(),
            Step::MountVolumes => self.mount_volumes().await,
            Step::KillPod(kill) => self.kill_pod(kill).await,
            Step::StopContainer(stop) => self.stop_container(stop).await,
            Step::RemoveInstances { ids, logs, on_failure } => {
                self.remove_instances(ids, *logs, *on_failure).await
            }
            Step::CreateSandbox { attempt } => {
                *sandbox_context = self.create_sandbox(*attempt).await?;
                Ok(())
            }
            Step::Resize(resize) => Box::pin(self.resize(resize)).await,
            Step::StartContainer(start) => {
                Box::pin(self.start_container(start, sandbox_context)).await
            }
            Step::UnmountVolumes => self.unmount_volumes().await,
            Step::DestroyCgroup => self.destroy_cgroup().await,
        }
    }

    /// Starts pulling the images of the plan while the sandbox is being created.
    fn prefetch(&self, plan: &Plan) -> Vec<Prefetch> {
        let starts = plan.steps.iter().filter_map(Step::start);
        let containers = starts.filter_map(|start| self.pod.container(&start.container));
        let rank = self.rank(StartStep::PullImage);
        containers.filter_map(|c| self.context.images.prefetch(self.pod, c, rank)).collect()
    }

    async fn ensure_cgroup(&mut self) -> Result<(), Failed> {
        let is_resizing =
            self.context.resources.allocations.resizing(&self.pod.uid).progress.is_some();
        match self.context.resources.cgroups.ensure_pod(self.pod, is_resizing).await {
            Ok(()) => {
                self.attempts().note_step_done(PodStep::Cgroup);
                Ok(())
            }
            Err(error) => {
                let text = format!("unable to ensure pod container exists: {}", chain(&error));
                self.failed_with_event(PodStep::Cgroup, "FailedCreatePodContainer", text)
            }
        }
    }

    fn make_directories(&mut self) -> Result<(), Failed> {
        match self.context.resources.volumes.make_directories(self.pod) {
            Ok(()) => {
                self.attempts().note_step_done(PodStep::Directories);
                Ok(())
            }
            Err(error) => {
                let text = format!("error making pod data directories: {}", chain(&error));
                self.failed_with_event(PodStep::Directories, "Failed", text)
            }
        }
    }

    async fn mount_volumes(&mut self) -> Result<(), Failed> {
        self.begin("mounting volumes");
        match self.context.resources.volumes.mount(self.pod).await {
            Ok(()) => {
                self.attempts().note_step_done(PodStep::Volumes);
                Ok(())
            }
            Err(not_mounted) => {
                for error in &not_mounted.errors {
                    let text = chain(error);
                    self.context.reporting.events.pod(
                        self.pod,
                        Severity::Warning,
                        "FailedMount",
                        text,
                    );
                }
                self.failed_for(PodStep::Volumes, not_mounted.waiting_for, not_mounted.retry_in)
            }
        }
    }

    async fn create_sandbox(&mut self, attempt: u32) -> Result<SandboxContext, Failed> {
        let ready = match self.sandbox_config(attempt).await {
            Ok(ready) => ready,
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {}", chain(&error));
                return self.failed_with_event(PodStep::Sandbox, "FailedCreatePodSandBox", text);
            }
        };
        self.begin("creating the pod sandbox");
        let runtime = self.context.runtime.clone();
        let (config, handler) = (ready.config.clone(), ready.handler.clone());
        let began = self.context.clock.now().mono;
        let permit = self.context.starts.acquire(self.rank(StartStep::RunSandbox)).await;
        let run = async move { runtime.run_sandbox(config, &handler).await };
        let made = self.call_tracker.run(permit.during(run)).await;
        let took = self.context.clock.now().mono.since(began);
        self.context.reporting.metrics.starts.sandbox(&ready.handler, took, made.is_ok());
        let id = match made {
            Ok(id) => id,
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {}", error.rpc_text());
                return self.failed_with_event(PodStep::Sandbox, "FailedCreatePodSandBox", text);
            }
        };
        let ips = match self.context.runtime.sandbox_status(&id).await {
            Ok(sandbox) => sandbox.ips.unwrap_or_default(),
            Err(error) => {
                let text = format!("Unable to get pod sandbox status: {}", error.rpc_text());
                return self.failed_with_event(PodStep::Sandbox, "FailedPodSandBoxStatus", text);
            }
        };
        self.attempts().note_step_done(PodStep::Sandbox);
        self.note("sandbox created");
        self.context.reporting.status.sandbox_ready(self.pod);
        Ok(SandboxContext::of(id, attempt, ips))
    }

    async fn remove_instances(
        &mut self,
        ids: &[ContainerId],
        logs: Logs,
        on_failure: plan::OnRemovalFailure,
    ) -> Result<(), Failed> {
        let mut failed = None;
        for id in ids {
            if let Err(error) = self.remove_instance(id, logs).await {
                failed.get_or_insert(error);
                // The order counts: what is left shows where an interrupted removal continues.
                match on_failure {
                    plan::OnRemovalFailure::End => break,
                    plan::OnRemovalFailure::Continue => {}
                }
            }
        }
        match failed {
            Some(error) => self.failed(PodStep::Removal, error),
            None => {
                self.attempts().note_step_done(PodStep::Removal);
                Ok(())
            }
        }
    }

    async fn remove_instance(&mut self, id: &ContainerId, logs: Logs) -> Result<(), String> {
        let seen = self.view.instances.iter().find(|instance| instance.id == *id);
        if logs == Logs::Removed
            && let Some(log) = seen.and_then(|instance| instance.log_path.clone())
        {
            let removed = logs::remove(&self.context.facts.pod_logs_dir, log).await;
            removed.map_err(|error| chain(&error))?;
        }
        let (runtime, id) = (self.context.runtime.clone(), id.clone());
        let removed =
            self.call_tracker.run(async move { runtime.remove_container(&id).await }).await;
        removed.map_err(|error| error.to_string())
    }

    async fn kill_pod(&mut self, kill: &plan::KillPod) -> Result<(), Failed> {
        if kill.replaced {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.context.reporting.events.pod(
                self.pod,
                Severity::Normal,
                "SandboxChanged",
                text.into(),
            );
        }
        if !kill.stops.is_empty() {
            self.begin(format!("stopping {}", kill.summary()));
        }
        let not_stopped = self.stop_in_order(&kill.stops).await;
        let mut errors: Vec<String> = not_stopped.iter().map(NotStopped::text).collect();
        let unreached = not_stopped.iter().filter(|stop| stop.is_unreached()).count();
        let failed = self.attempts().step_failure(PodStep::Kill).map_or(0, |failed| failed.times);
        let stops_sandboxes = plan::kill::stops_sandboxes(unreached, failed);
        for sandbox in kill.sandboxes.iter().filter(|_| stops_sandboxes) {
            if let Err(error) = self.stop_sandbox(sandbox).await {
                let (uid, text) = (self.pod.uid.as_str(), error.rpc_text());
                errors.push(format!(
                    "failed to \"KillPodSandbox\" for {uid:?} with KillPodSandboxError: {text:?}"
                ));
            }
        }
        let all = match errors.as_slice() {
            [] => {
                self.attempts().note_step_done(PodStep::Kill);
                return Ok(());
            }
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        self.failed_with_event(PodStep::Kill, "FailedKillPod", format!("error killing pod: {all}"))
    }

    async fn stop_sandbox(&mut self, sandbox: &SandboxId) -> Result<(), podwright_cri::Error> {
        self.begin("stopping the pod sandbox");
        let (runtime, handle, id) =
            (self.context.runtime.clone(), self.handle.clone(), sandbox.clone());
        let clock = self.context.clock.clone();
        // Recorded in the tracked call: a preempted worker would otherwise stop the sandbox twice.
        let stop = async move {
            runtime.stop_sandbox(&id).await?;
            handle.attempts.lock().note_sandbox_stopped(id, clock.now().mono);
            Ok(())
        };
        self.call_tracker.run(stop).await
    }

    async fn unmount_volumes(&mut self) -> Result<(), Failed> {
        self.begin("unmounting volumes");
        let Err(error) = self.context.resources.volumes.release(&self.pod.uid).await else {
            return Ok(());
        };
        let error = chain(&error);
        let logged = self.attempts().step_failure(PodStep::Teardown).map(|f| f.message.clone());
        if logged.as_ref() != Some(&error) {
            let (pod, uid) = (&self.pod.name, &self.pod.uid);
            tracing::warn!(%pod, %uid, error, "release volumes failed, the pod stays, retrying");
        }
        self.failed(PodStep::Teardown, error)
    }

    async fn destroy_cgroup(&mut self) -> Result<(), Failed> {
        match self.context.resources.cgroups.destroy_pod(self.pod).await {
            Ok(()) => {
                self.attempts().note_step_done(PodStep::Teardown);
                Ok(())
            }
            Err(error) => self.failed(PodStep::Teardown, chain(&error)),
        }
    }

    /// Records a failed step for the next decision.
    pub(super) fn failed<T>(&mut self, step: PodStep, text: String) -> Result<T, Failed> {
        let retry = attempts::step_retry(&self.pod.uid);
        self.failed_for(step, text, retry)
    }

    /// As [`Self::failed`], with the retry delay given by the step.
    fn failed_for<T>(&mut self, step: PodStep, text: String, retry: Duration) -> Result<T, Failed> {
        let now = self.note(&text);
        self.attempts().note_step_failure(step, text, now, retry);
        Err(Failed(()))
    }

    /// As [`Self::failed`], with an event for the user.
    fn failed_with_event<T>(
        &mut self,
        step: PodStep,
        reason: &'static str,
        text: String,
    ) -> Result<T, Failed> {
        self.context.reporting.events.pod(self.pod, Severity::Warning, reason, text.clone());
        self.failed(step, text)
    }

    /// Records why a container did not start.
    pub(super) fn not_started(
        &mut self,
        container: &Container,
        reason: StartError,
        message: String,
        image: Option<&Arc<str>>,
    ) -> Failed {
        let (name, key) = (&container.name, container.backoff_key);
        let now = self.note(&format!("{name} did not start: {message}"));
        let (retry, mut attempts) = (attempts::step_retry(&self.pod.uid), self.attempts());
        attempts.note_start_failure(name, key, reason, message, now, retry);
        if let Some(image) = image {
            attempts.note_unpulled(name, key, image);
        }
        Failed(())
    }

    /// Locked for one statement at a time, so that the debug socket does not wait for a runtime
    /// call.
    pub(super) fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.handle.attempts.lock()
    }

    /// Priority of this pod in the start limiter and among pulls. The permit is acquired before the
    /// call is tracked: a pod that begins to terminate meanwhile leaves the queue and creates
    /// nothing.
    pub(super) fn rank(&self, act: StartStep) -> Rank {
        Rank::of(self.pod, act).after_failure(self.attempts().has_failures())
    }

    pub(super) fn begin(&self, what: impl Into<String>) {
        self.handle.journal.lock().begin(self.context.clock.now(), what);
    }

    pub(super) fn note(&self, text: &str) -> Now {
        let now = self.context.clock.now();
        self.handle.journal.lock().note(now, text);
        now
    }
}
