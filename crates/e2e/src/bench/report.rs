//! Benchmark report, as a table and as JSON.

use std::fmt::{self, Display};

use serde::Serialize;

use super::decision::Decision;
use super::floor::{Floor, Load, Singles};
use super::growth::Growth;
use super::kubelet::{Batch, ConfigMaps, Figures};
use super::quantiles::Quantiles;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub singles: Singles,
    pub floors: Vec<Floor>,
    pub kubelets: Vec<Figures>,
    pub growth: Vec<Growth>,
    pub decision: Decision,
    /// Failed measurements and their errors.
    pub failures: Vec<String>,
}

impl Report {
    pub(super) fn floor(&self, pods: usize, load: Load) -> Option<&Floor> {
        self.floors.iter().find(|floor| floor.pods == pods && floor.load == load)
    }
}

/// A duration and its ratio to the floor.
struct Ratio(f64, Option<f64>);

impl Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(floor) if floor > 0.0 => write!(f, "{:.2} s ({:.2} x)", self.0, self.0 / floor),
            Some(_) | None => write!(f, "{:.2} s", self.0),
        }
    }
}

/// The upper quantiles.
struct Tail(Quantiles);

impl Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p90 {:.2} s, p99 {:.2} s", self.0.p90, self.0.p99)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "floor: bare CRI calls, best of 1, 4 and all at a time")?;
        let Singles { start, stop } = &self.singles;
        writeln!(
            f,
            "  one pod: start p50 {:.2} s, {}; stop p50 {:.2} s, {}",
            start.p50,
            Tail(*start),
            stop.p50,
            Tail(*stop)
        )?;
        for floor in &self.floors {
            let (Some(start), Some(stop)) = (floor.start(), floor.stop()) else { continue };
            writeln!(
                f,
                "  {:>4} pods, {:<22} start p50 {:.2} s, all {:.2} s ({} at a time), \
                 all stopped {:.2} s ({} at a time)",
                floor.pods,
                floor.load.to_string(),
                start.each.p50,
                start.all,
                start.at_a_time,
                stop.all,
                stop.at_a_time
            )?;
        }
        for kubelet in &self.kubelets {
            self.kubelet(f, kubelet)?;
        }
        for growth in &self.growth {
            writeln!(f, "{growth}")?;
        }
        let Decision { at_rest, all_dead } = &self.decision;
        writeln!(
            f,
            "one decision for five containers: p50 {:.1} µs idle, {:.1} µs after all have exited",
            at_rest.p50 * 1e6,
            all_dead.p50 * 1e6
        )?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "not measured: {failure}"))
    }
}

impl Report {
    fn kubelet(&self, f: &mut fmt::Formatter<'_>, kubelet: &Figures) -> fmt::Result {
        writeln!(f, "{}", kubelet.kubelet)?;
        let (memory, single) = (kubelet.idle.memory, &kubelet.single);
        writeln!(
            f,
            "  no pods: {:.1} MB ({:.1} anonymous), {:.2} millicores",
            memory.resident, memory.anonymous, kubelet.idle.millicores
        )?;
        let start = Ratio(single.start.p50, Some(self.singles.start.p50));
        let delete = Ratio(single.delete.p50, Some(self.singles.stop.p50));
        writeln!(
            f,
            "  one pod: ready p50 {start}, {}; gone p50 {delete}, {}; exit seen p50 {:.2} s, {}",
            Tail(single.start),
            Tail(single.delete),
            single.exit.p50,
            Tail(single.exit)
        )?;
        for batch in &kubelet.batches {
            self.batch(f, batch)?;
        }
        match &kubelet.config_map {
            Some(ConfigMaps { edited, missing }) => writeln!(
                f,
                "  edited ConfigMap seen p50 {:.2} s, {}; missing one created to Ready p50 {:.2} s, {}",
                edited.p50,
                Tail(*edited),
                missing.p50,
                Tail(*missing)
            ),
            None => writeln!(f, "  edited ConfigMap: the pod that reads it did not start"),
        }
    }

    fn batch(&self, f: &mut fmt::Formatter<'_>, batch: &Batch) -> fmt::Result {
        let floor = self.floor(batch.pods, Load::Api);
        let (start, stop) = (floor.and_then(Floor::start), floor.and_then(Floor::stop));
        let p50 = Ratio(batch.start.p50, start.map(|start| start.each.p50));
        let ready = Ratio(batch.all_ready, start.map(|start| start.all));
        let gone = Ratio(batch.all_gone, stop.map(|stop| stop.all));
        writeln!(
            f,
            "  {} pods at once: ready p50 {p50}, {}, all {ready}; gone {gone}; agent CPU {:.2} s",
            batch.pods,
            Tail(batch.start),
            batch.start_cpu
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
