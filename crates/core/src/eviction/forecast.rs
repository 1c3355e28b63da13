//! How far the node is from each threshold, and which pods would go first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::layout::DiskLayout;
use super::pass::Verdict;
use super::ranking;
use super::signal::{Observations, Resource, Signal};
use super::thresholds::Thresholds;
use super::usage::PodUsage;

/// Pods that are named for each resource.
const NAMED: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    #[serde(rename = "thresholds")]
    pub thresholds: Vec<Distance>,
    /// By resource: the pods that would be evicted first.
    #[serde(rename = "next")]
    pub next: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distance {
    #[serde(rename = "signal")]
    pub signal: String,
    #[serde(rename = "soft")]
    pub soft: bool,
    /// As a quantity.
    #[serde(rename = "threshold")]
    pub threshold: Option<String>,
    /// As a quantity; `None`: it could not be measured.
    #[serde(rename = "available")]
    pub available: Option<String>,
    #[serde(rename = "capacity")]
    pub capacity: Option<String>,
    /// How much more can be used; zero if the threshold is met.
    #[serde(rename = "left")]
    pub left: Option<String>,
    /// Seconds for which it has been met, or not resolved since.
    #[serde(rename = "metSeconds")]
    pub met_seconds: Option<u64>,
    /// Why the value is old, or absent.
    #[serde(rename = "problem")]
    pub problem: Option<String>,
}

/// From the last pass. `problems`: why signals could not be measured.
pub fn forecast(
    thresholds: &Thresholds,
    observed: &Observations,
    verdict: &Verdict,
    problems: &BTreeMap<Signal, String>,
    pods: &[PodUsage],
    layout: DiskLayout,
) -> Forecast {
    let distance = |threshold: &super::EvictionThreshold| {
        let signal = threshold.signal;
        let seen = observed.get(&signal);
        let quantity = |amount: u64| signal.quantity(amount).to_string();
        let met = verdict.met.iter();
        let met = met.filter(|(met, _)| met.signal == signal && met.soft == threshold.soft);
        Distance {
            signal: signal.to_string(),
            soft: threshold.soft,
            threshold: seen.map(|seen| quantity(threshold.amount(seen.capacity))),
            available: seen.map(|seen| quantity(seen.available)),
            capacity: seen.map(|seen| quantity(seen.capacity)),
            left: seen.map(|seen| {
                quantity(seen.available.saturating_sub(threshold.amount(seen.capacity)))
            }),
            met_seconds: met.map(|(_, since)| since.as_secs()).next(),
            problem: problems.get(&signal).cloned(),
        }
    };
    let named = |signal: Signal| {
        let ranked = ranking::ranked(pods.to_vec(), signal, layout).into_iter();
        let names = ranked.filter(ranking::may_be_evicted).map(|pod| pod.pod.name.to_string());
        names.take(NAMED).collect::<Vec<String>>()
    };
    let mut next = BTreeMap::new();
    for threshold in thresholds.iter() {
        let resource: Resource = threshold.signal.resource();
        next.entry(resource.as_str().to_owned()).or_insert_with(|| named(threshold.signal));
    }
    Forecast { thresholds: thresholds.iter().map(distance).collect(), next }
}
