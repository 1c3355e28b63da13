//! The figures as a table for people and as JSON for programs.

use std::fmt::{self, Display};

use serde::Serialize;

use super::floor::{Floor, Load};
use super::growth::Growth;
use super::kubelet::{Batch, Figures};

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub floors: Vec<Floor>,
    pub kubelets: Vec<Figures>,
    pub growth: Vec<Growth>,
}

impl Report {
    pub(super) fn floor(&self, pods: usize, load: Load) -> Option<&Floor> {
        self.floors.iter().find(|floor| floor.pods == pods && floor.load == load)
    }
}

/// A time and how it stands to the floor.
struct Ratio(f64, Option<f64>);

impl Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(floor) if floor > 0.0 => write!(f, "{:.2} s ({:.2} x)", self.0, self.0 / floor),
            Some(_) | None => write!(f, "{:.2} s", self.0),
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "floor: bare CRI calls, the best of 1, 4 and all at a time")?;
        for floor in &self.floors {
            writeln!(
                f,
                "  {:>4} pods, {:<22} start p50 {:.2} s, all {:.2} s, stopped {:.2} s ({} at a time)",
                floor.pods,
                floor.load.to_string(),
                floor.start.p50,
                floor.all_started,
                floor.all_stopped,
                floor.at_a_time
            )?;
        }
        for kubelet in &self.kubelets {
            self.kubelet(f, kubelet)?;
        }
        for growth in &self.growth {
            let Growth { pods, all_ready, all_gone, start_cpu, loaded } = growth;
            writeln!(
                f,
                "{pods} pods on a fake runtime: ready {all_ready:.1} s, gone {all_gone:.1} s, \
                 agent CPU {start_cpu:.1} s; then idle: {:.1} MB ({:.1} anonymous), {:.2} millicores",
                loaded.memory.resident, loaded.memory.anonymous, loaded.millicores
            )?;
        }
        Ok(())
    }
}

impl Report {
    fn kubelet(&self, f: &mut fmt::Formatter<'_>, kubelet: &Figures) -> fmt::Result {
        let one = self.floor(1, Load::None);
        writeln!(f, "{}", kubelet.kubelet)?;
        let (memory, single) = (kubelet.idle.memory, &kubelet.single);
        writeln!(
            f,
            "  no pods: {:.1} MB ({:.1} anonymous), {:.2} millicores",
            memory.resident, memory.anonymous, kubelet.idle.millicores
        )?;
        let start = Ratio(single.start.p50, one.map(|floor| floor.start.p50));
        let delete = Ratio(single.delete.p50, one.map(|floor| floor.all_stopped));
        writeln!(
            f,
            "  one pod: ready p50 {start}, p90 {:.2} s; gone p50 {delete}, p90 {:.2} s; \
             exit seen p50 {:.3} s, p90 {:.3} s",
            single.start.p90, single.delete.p90, single.exit.p50, single.exit.p90
        )?;
        for batch in &kubelet.batches {
            self.batch(f, batch)?;
        }
        match kubelet.config_map_seen {
            Some(seconds) => writeln!(f, "  edited ConfigMap seen after {seconds:.2} s"),
            None => writeln!(f, "  edited ConfigMap: the pod that reads it did not start"),
        }
    }

    fn batch(&self, f: &mut fmt::Formatter<'_>, batch: &Batch) -> fmt::Result {
        let floor = self.floor(batch.pods, Load::Api);
        let p50 = Ratio(batch.start.p50, floor.map(|floor| floor.start.p50));
        let ready = Ratio(batch.all_ready, floor.map(|floor| floor.all_started));
        let gone = Ratio(batch.all_gone, floor.map(|floor| floor.all_stopped));
        writeln!(
            f,
            "  {} pods at once: ready p50 {p50}, all {ready}; gone {gone}; agent CPU {:.2} s",
            batch.pods, batch.start_cpu
        )?;
        let loaded = &batch.loaded;
        writeln!(
            f,
            "    then idle: {:.1} MB ({:.1} anonymous), {:.2} millicores",
            loaded.memory.resident, loaded.memory.anonymous, loaded.millicores
        )?;
        for (when, requests) in
            [("start", &batch.start_requests), ("delete", &batch.delete_requests)]
        {
            let list = requests.iter().map(|(what, each)| format!("{what} {each:.2}"));
            let list = list.collect::<Vec<_>>().join(", ");
            writeln!(f, "    requests for each pod, {when}: {list}")?;
        }
        Ok(())
    }
}
