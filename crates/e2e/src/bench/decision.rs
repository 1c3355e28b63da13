//! Cost of one decision of the agent: `decide` for a pod of five containers, in this process.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_core::builders::{case, observed, pod, t};
use podwright_core::plan::{Case, decide};
use serde::Serialize;

use super::quantiles::Quantiles;

const CONTAINERS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Decisions per timed round: one is too short to time.
const DECISIONS_PER_ROUND: u32 = 100;
const ROUNDS: usize = 200;

/// Seconds of one decision.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Decision {
    /// All containers run: no steps.
    pub at_rest: Quantiles,
    /// All five have exited and must be restarted.
    pub all_dead: Quantiles,
}

impl Decision {
    pub fn measure() -> Result<Self> {
        let pod = || CONTAINERS.iter().fold(pod("five"), |pod, name| pod.container(name)).build();
        let at_rest = {
            let pod = pod();
            let seen = observed(&pod).sandbox_ready();
            let seen = CONTAINERS.iter().fold(seen, |seen, name| seen.running(name, t(10)));
            let seen = seen.build();
            case(pod, seen, t(1_000))
        };
        let all_dead = {
            let pod = pod();
            let seen = observed(&pod).sandbox_ready();
            let seen = CONTAINERS.iter().fold(seen, |seen, name| seen.exited(name, 1, t(10)));
            let seen = seen.build();
            case(pod, seen, t(1_000))
        };
        Ok(Self { at_rest: cost(&at_rest)?, all_dead: cost(&all_dead)? })
    }
}

fn cost(case: &Case) -> Result<Quantiles> {
    let round = || {
        let began = Instant::now();
        for _ in 0..DECISIONS_PER_ROUND {
            black_box(decide(black_box(&case.inputs())));
        }
        began.elapsed() / DECISIONS_PER_ROUND
    };
    let times: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    Quantiles::of(&times).context("no rounds")
}
