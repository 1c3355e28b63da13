//! Eviction thresholds from the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_api::quantity::{ParseQuantityError, Quantity};

use super::layout::DiskLayout;
use super::signal::{Observation, Signal};
use crate::node_status::resources::Threshold as Amount;

/// The fields of the configuration that concern eviction thresholds.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub hard: BTreeMap<String, String>,
    pub soft: BTreeMap<String, String>,
    /// In milliseconds; negative periods are refused here.
    pub soft_grace: BTreeMap<String, i64>,
    pub minimum_reclaim: BTreeMap<String, String>,
    /// `enforceNodeAllocatable` contains `pods`: the cgroup of all pods has a limit.
    pub enforce_pods: bool,
}

/// A signal, and the amount below which something is done about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionThreshold {
    pub signal: Signal,
    pub value: Amount,
    /// From `evictionSoft`.
    pub soft: bool,
    /// How long it must be met before pods are evicted; zero: at once, with no time for the pod.
    pub grace: Duration,
    pub minimum_reclaim: Option<Amount>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    list: Vec<EvictionThreshold>,
    /// Configured, but derived from other signals.
    ignored: Vec<Signal>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ThresholdError {
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    #[error("eviction threshold {signal} must be positive: {value}")]
    NotPositive { signal: String, value: String },
    #[error("eviction percentage threshold {signal} must be >= 0%: {value}")]
    NegativePercentage { signal: String, value: String },
    #[error("eviction percentage threshold {signal} must be <= 100%: {value}")]
    LargePercentage { signal: String, value: String },
    #[error("eviction threshold {signal}: {value:?} is not a percentage")]
    Percentage { signal: String, value: String },
    #[error("eviction threshold {signal}")]
    Quantity { signal: String, source: ParseQuantityError },
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGrace(String),
    #[error("invalid eviction grace period specified: {0}ms, must be a positive value")]
    NegativeGrace(i64),
    #[error("eviction percentage minimum reclaim {signal} must be positive: {value}")]
    ReclaimPercentage { signal: String, value: String },
    #[error("negative eviction minimum reclaim specified for {0}")]
    NegativeReclaim(String),
}

impl EvictionThreshold {
    /// The amount below which it is met.
    pub fn amount(&self, capacity: u64) -> u64 {
        self.quantity(capacity).unsigned_value()
    }

    /// The same as it is written in messages.
    pub fn quantity(&self, capacity: u64) -> Quantity {
        self.value.of(Quantity::from_bytes(capacity))
    }

    /// The amount that must be available before it counts as resolved.
    pub fn resolved_at(&self, capacity: u64) -> u64 {
        let more = self
            .minimum_reclaim
            .map_or(Quantity::ZERO, |amount| amount.of(Quantity::from_bytes(capacity)));
        self.amount(capacity).saturating_add(more.unsigned_value())
    }

    pub fn is_met(&self, seen: &Observation) -> bool {
        seen.available < self.amount(seen.capacity)
    }

    /// Met, or resolved by less than the minimum reclaim.
    pub fn is_unresolved(&self, seen: &Observation) -> bool {
        seen.available < self.resolved_at(seen.capacity)
    }
}

impl Thresholds {
    pub const NONE: Self = Self { list: Vec::new(), ignored: Vec::new() };

    pub fn parse(sources: &Sources) -> Result<Self, ThresholdError> {
        let hard = amounts(&sources.hard)?;
        let soft = amounts(&sources.soft)?;
        let mut reclaims = BTreeMap::new();
        for (name, text) in &sources.minimum_reclaim {
            reclaims.insert(known(name)?, reclaim(name, text)?);
        }
        let mut graces = BTreeMap::new();
        for (name, period) in &sources.soft_grace {
            let period = u64::try_from(*period)
                .map_err(|_| ThresholdError::NegativeGrace(*period))
                .map(Duration::from_millis)?;
            graces.insert(known(name)?, period);
        }
        let mut this = Self::NONE;
        let mut add = |signal: Signal, value: Amount, grace: Option<Duration>| {
            if signal.is_derived() {
                return this.ignored.push(signal);
            }
            let minimum_reclaim = reclaims.get(&signal).copied();
            let (soft, grace) = (grace.is_some(), grace.unwrap_or_default());
            this.list.push(EvictionThreshold { signal, value, soft, grace, minimum_reclaim });
        };
        for (signal, value) in hard {
            add(signal, value, None);
        }
        for (signal, value) in soft {
            let grace = graces.get(&signal).copied();
            let missing = || ThresholdError::NoGrace(signal.to_string());
            add(signal, value, Some(grace.ok_or_else(missing)?));
        }
        if sources.enforce_pods && !this.has(Signal::AllocatableMemory) {
            let copies: Vec<EvictionThreshold> = this
                .list
                .iter()
                .filter(|threshold| threshold.signal == Signal::Memory && !threshold.soft)
                .map(|threshold| EvictionThreshold {
                    signal: Signal::AllocatableMemory,
                    ..*threshold
                })
                .collect();
            this.list.extend(copies);
        }
        Ok(this)
    }

    pub fn iter(&self) -> impl Iterator<Item = &EvictionThreshold> {
        self.list.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn has(&self, signal: Signal) -> bool {
        self.list.iter().any(|threshold| threshold.signal == signal)
    }

    /// Configured thresholds without effect.
    pub fn ignored(&self) -> &[Signal] {
        &self.ignored
    }

    /// The value of the hard threshold of a signal, as it reduces Allocatable.
    pub fn hard(&self, signal: Signal) -> Option<Amount> {
        let mut all = self.list.iter();
        all.find(|threshold| threshold.signal == signal && !threshold.soft).map(|found| found.value)
    }

    /// With the thresholds of the file system of writable layers, which follow from the layout.
    pub fn with_layout(&self, layout: DiskLayout) -> Self {
        let derived = self.list.iter().filter_map(|threshold| {
            let signal = layout.container_signal(threshold.signal)?;
            Some(EvictionThreshold { signal, ..*threshold })
        });
        let own = self.list.iter().filter(|threshold| !threshold.signal.is_derived()).copied();
        Self { list: own.chain(derived).collect(), ignored: self.ignored.clone() }
    }
}

fn known(name: &str) -> Result<Signal, ThresholdError> {
    Signal::parse(name).ok_or_else(|| ThresholdError::Signal(name.to_owned()))
}

/// In the order of signals. These two texts switch a threshold off.
fn amounts(texts: &BTreeMap<String, String>) -> Result<BTreeMap<Signal, Amount>, ThresholdError> {
    let mut parsed = BTreeMap::new();
    for (name, text) in texts {
        let signal = known(name)?;
        if text != "0%" && text != "100%" {
            parsed.insert(signal, amount(name, text)?);
        }
    }
    Ok(parsed)
}

fn amount(name: &str, text: &str) -> Result<Amount, ThresholdError> {
    let (signal, value) = (name.to_owned(), text.to_owned());
    match parse(name, text)? {
        Amount::Part(part) if part < 0.0 => {
            Err(ThresholdError::NegativePercentage { signal, value })
        }
        Amount::Part(part) if part > 1.0 => Err(ThresholdError::LargePercentage { signal, value }),
        Amount::Amount(quantity) if quantity.is_zero() || quantity.is_negative() => {
            Err(ThresholdError::NotPositive { signal, value })
        }
        amount => Ok(amount),
    }
}

fn reclaim(name: &str, text: &str) -> Result<Amount, ThresholdError> {
    match parse(name, text)? {
        Amount::Part(part) if part <= 0.0 || part > 1.0 => {
            let (signal, value) = (name.to_owned(), text.to_owned());
            Err(ThresholdError::ReclaimPercentage { signal, value })
        }
        Amount::Amount(quantity) if quantity.is_negative() => {
            Err(ThresholdError::NegativeReclaim(name.to_owned()))
        }
        amount => Ok(amount),
    }
}

fn parse(name: &str, text: &str) -> Result<Amount, ThresholdError> {
    let signal = name.to_owned();
    match text.strip_suffix('%') {
        Some(percent) => {
            let value = text.to_owned();
            // Rust reads `nan` and `inf`, too.
            let percent = percent.parse::<f32>().ok().filter(|percent| percent.is_finite());
            let percent = percent.ok_or(ThresholdError::Percentage { signal, value })?;
            Ok(Amount::Part(percent / 100.0))
        }
        None => text
            .parse()
            .map(Amount::Amount)
            .map_err(|source| ThresholdError::Quantity { signal, source }),
    }
}
