//! Wishes for other resources: granted where there is room, asked again where there was none.

use std::sync::Arc;

use podwright_core::config::{CgroupVersion, SwapBehaviour};
use podwright_core::lifecycle::Request;
use podwright_core::pod::Pod;
use podwright_core::qos::QosClass;
use podwright_core::resize::NotGranted;
use podwright_core::resize::fit::{self, Room};
use podwright_core::resize::grant::summary;

use super::Pods;
use crate::allocations::Answer;
use crate::events::Severity;

impl Pods {
    /// The pod with what it is granted from now on. Nothing new is granted before all sources
    /// were heard: until then nobody knows what the others have.
    pub(super) fn resized(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        if self.directory.sources_ready() {
            self.ask(pod);
        } else {
            self.undecided.insert(pod.uid.clone());
        }
        self.tools.allocations.granted(pod)
    }

    /// What did not fit may fit now. Costs nothing while nobody waits.
    pub(super) fn retry_resizes(&mut self) {
        let allocations = &self.tools.allocations;
        let mut waiting = std::mem::take(&mut self.undecided);
        waiting.extend(allocations.deferred());
        let mut waiting: Vec<Arc<Pod>> =
            waiting.iter().filter_map(|uid| self.directory.pod(uid)).collect();
        waiting.sort_by_cached_key(|pod| {
            let since = allocations.resizing(&pod.uid).pending.as_ref().map(|wish| wish.since);
            fit::rank(pod, &allocations.granted(pod), since)
        });
        for pod in waiting {
            let Some(cell) = self.directory.cell(&pod.uid) else { continue };
            let before = allocations.resizing(&pod.uid);
            self.ask(&pod);
            if allocations.resizing(&pod.uid) != before {
                cell.update(allocations.granted(&pod), Request::Update);
            }
        }
    }

    fn ask(&self, pod: &Arc<Pod>) {
        let tools = &self.tools;
        let machine = &tools.facts.machine;
        let swaps = machine.swap.is_some_and(|swap| match (swap.behaviour, machine.cgroups) {
            (SwapBehaviour::LimitedSwap, CgroupVersion::V2) => true,
            (SwapBehaviour::LimitedSwap, CgroupVersion::V1) | (SwapBehaviour::NoSwap, _) => false,
        });
        let burstable = QosClass::of(&pod.object) == Ok(QosClass::Burstable);
        let room = Room { allocatable: &tools.facts.allocatable, swap: swaps && burstable };
        let now = tools.clock.now().wall;
        match tools.allocations.wish(pod, || self.directory.active_pods(), room, now) {
            Answer::Nothing => {}
            Answer::Granted => {
                let text = format!("Pod resize started: {}", summary(pod, pod.generation(), None));
                tools.events.pod(pod, Severity::Normal, "ResizeStarted", text);
            }
            Answer::Refused { why, message, news: true } => {
                let told = summary(pod, pod.generation(), Some(&message));
                let text = format!("Pod resize {}: {told}", why.as_str());
                let reason = match why {
                    NotGranted::Deferred => "ResizeDeferred",
                    NotGranted::Infeasible => "ResizeInfeasible",
                };
                tools.events.pod(pod, Severity::Warning, reason, text);
            }
            Answer::Refused { news: false, .. } => {}
        }
    }
}
