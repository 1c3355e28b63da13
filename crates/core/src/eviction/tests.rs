//! The rules of eviction, by the rows of the behaviour reference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod passes;
mod pods;
mod properties;
mod ranks;
mod storage;
mod timing;
mod values;
mod victims;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::time::Mono;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const TRANSITION: Duration = Duration::from_secs(300);

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn hard(pairs: &[(&str, &str)]) -> Sources {
    Sources { hard: map(pairs), ..Sources::default() }
}

fn thresholds(sources: &Sources) -> Thresholds {
    Thresholds::parse(sources).unwrap()
}

fn second(second: u64) -> Mono {
    Mono(Duration::from_secs(second))
}

fn seen(available: u64, capacity: u64, at: u64) -> Observation {
    Observation { available, capacity, at: SampleTime::Measured(second(at)) }
}

fn memory(available: u64, at: u64) -> Observations {
    Observations::from([(Signal::Memory, seen(available, 8 * GI, at))])
}
