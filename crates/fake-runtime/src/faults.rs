//! Fault injection: rules for calls and events.
//!
//! A rule selects calls, which of them fail, and how. Random choices are drawn from the fake's
//! seed, so a failed run can be repeated.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use super::random::Random;
use super::rpc::{About, Rpc};

/// Fault of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Refused with this message; nothing happens.
    Error(Code, String),
    /// It is carried out, but the response is an error.
    DoneButError(Code, String),
    /// The work takes this much longer. Delays of several rules add up, and a delayed call may have
    /// another fault as well.
    Delay(Duration),
    /// No response, and nothing happens. What the call had reserved (a name, say) stays reserved
    /// until the caller gives up.
    Hang,
    /// No response; carried out this much later, whether or not the caller still waits. With a
    /// delay beyond all deadlines it is the call that keeps a name reserved until a restart.
    Late(Duration),
    /// The connection breaks before anything happens.
    Disconnect,
    /// The connection breaks after it was carried out.
    DoneButDisconnect,
    /// Carried out twice, as by a transport that retried; the second response is returned.
    Twice,
    /// Carried out, and its response is held back until a later call of the same method was
    /// answered; at most this long, if there is none.
    Overtaken(Duration),
}

/// Fault of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFault {
    Drop,
    Duplicate,
    /// Published this much later: later events overtake it.
    Late(Duration),
}

#[derive(Clone)]
pub struct Rule<F> {
    fault: F,
    rpcs: Option<Vec<Rpc>>,
    pod: Option<String>,
    container: Option<String>,
    only: Option<Predicate>,
    when: When,
    /// How many calls it selected so far.
    seen: u64,
}

/// Runs while the fake is locked: it must not access the fake.
type Predicate = Arc<dyn Fn(&About) -> bool + Send + Sync>;

#[derive(Clone, Copy, Debug)]
enum When {
    Always,
    Nth(u64),
    First(u64),
    Chance(f64),
}

impl Rule<Fault> {
    pub fn on(rpc: Rpc, fault: Fault) -> Self {
        Self { rpcs: Some(vec![rpc]), ..Self::new(fault) }
    }

    pub fn on_any_of(rpcs: impl IntoIterator<Item = Rpc>, fault: Fault) -> Self {
        Self { rpcs: Some(rpcs.into_iter().collect()), ..Self::new(fault) }
    }

    pub fn on_every_call(fault: Fault) -> Self {
        Self::new(fault)
    }
}

impl Rule<EventFault> {
    pub fn on_events(fault: EventFault) -> Self {
        Self::new(fault)
    }
}

impl<F> Rule<F> {
    fn new(fault: F) -> Self {
        Self {
            fault,
            rpcs: None,
            pod: None,
            container: None,
            only: None,
            when: When::Always,
            seen: 0,
        }
    }

    /// Only for this pod: a name, `namespace/name` or a UID.
    pub fn pod(mut self, pod: impl Into<String>) -> Self {
        self.pod = Some(pod.into());
        self
    }

    /// Only for containers of this name.
    pub fn container(mut self, container: impl Into<String>) -> Self {
        self.container = Some(container.into());
        self
    }

    /// Only where this holds. It runs while the fake is locked: it must not access the fake.
    pub fn only(mut self, predicate: impl Fn(&About) -> bool + Send + Sync + 'static) -> Self {
        self.only = Some(Arc::new(predicate));
        self
    }

    /// Only the `n`th of the selected calls, counted from one.
    pub fn nth(mut self, n: u64) -> Self {
        self.when = When::Nth(n);
        self
    }

    /// Only the first `n` of the selected calls.
    pub fn first(mut self, n: u64) -> Self {
        self.when = When::First(n);
        self
    }

    /// A share of `p` of the selected calls, drawn from the fake's seed.
    pub fn chance(mut self, p: f64) -> Self {
        self.when = When::Chance(p);
        self
    }

    fn means(&self, rpc: Option<Rpc>, about: &About) -> bool {
        let rpc_fits = match (&self.rpcs, rpc) {
            (Some(wanted), Some(rpc)) => wanted.contains(&rpc),
            (None, _) => true,
            (Some(_), None) => false,
        };
        rpc_fits
            && self.pod.as_ref().is_none_or(|pod| about.is_of(pod))
            && self.container.as_ref().is_none_or(|c| about.container.as_ref() == Some(c))
            && self.only.as_ref().is_none_or(|only| only(about))
    }

    /// Counts a selected call, and returns whether the fault applies.
    fn applies(&mut self, random: &mut Random) -> bool {
        self.seen += 1;
        match self.when {
            When::Always => true,
            When::Nth(n) => self.seen == n,
            When::First(n) => self.seen <= n,
            When::Chance(p) => random.chance(p),
        }
    }
}

impl<F: fmt::Debug> fmt::Debug for Rule<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("fault", &self.fault)
            .field("rpcs", &self.rpcs)
            .field("pod", &self.pod)
            .field("container", &self.container)
            .field("only", &self.only.is_some())
            .field("when", &self.when)
            .field("seen", &self.seen)
            .finish()
    }
}

/// Combined result of all rules for one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) delay: Duration,
    pub(super) fault: Option<Fault>,
}

impl Verdict {
    /// As recorded: a fault hides a delay.
    pub(super) fn recorded(&self) -> Option<Fault> {
        let delay = (!self.delay.is_zero()).then_some(Fault::Delay(self.delay));
        self.fault.clone().or(delay)
    }
}

#[derive(Debug)]
pub(super) struct Rules {
    calls: Vec<Rule<Fault>>,
    events: Vec<Rule<EventFault>>,
    random: Random,
}

impl Rules {
    pub(super) fn new(random: Random) -> Self {
        Self { calls: Vec::new(), events: Vec::new(), random }
    }

    pub(super) fn add(&mut self, rule: Rule<Fault>) {
        self.calls.push(rule);
    }

    pub(super) fn add_for_events(&mut self, rule: Rule<EventFault>) {
        self.events.push(rule);
    }

    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.events.clear();
    }

    /// The first rule that applies decides; delays add up.
    pub(super) fn judge(&mut self, rpc: Rpc, about: &About) -> Verdict {
        let mut verdict = Verdict::default();
        for rule in &mut self.calls {
            if !rule.means(Some(rpc), about) || !rule.applies(&mut self.random) {
                continue;
            }
            match &rule.fault {
                Fault::Delay(more) => verdict.delay = verdict.delay.saturating_add(*more),
                fault => {
                    verdict.fault.get_or_insert_with(|| fault.clone());
                }
            }
        }
        verdict
    }

    pub(super) fn judge_event(&mut self, about: &About) -> Option<EventFault> {
        let mut fault = None;
        for rule in &mut self.events {
            if rule.means(None, about) && rule.applies(&mut self.random) {
                fault = fault.or(Some(rule.fault));
            }
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_core::ids::{PodName, PodUid};

    use super::super::rpc::PodRef;

    fn about(pod: &str, container: &str) -> About {
        About {
            pod: Some(PodRef { uid: PodUid::new(pod), name: PodName::new("default", pod) }),
            container: Some(container.into()),
            ..About::default()
        }
    }

    fn struck(rule: Rule<Fault>, calls: u64) -> Vec<u64> {
        let mut rules = Rules::new(Random::new(5, 0));
        rules.add(rule);
        let judged = (1..=calls)
            .map(|n| (n, rules.judge(Rpc::StartContainer, &about("web", "app")).fault.is_some()));
        judged.filter(|(_, struck)| *struck).map(|(n, _)| n).collect()
    }

    #[test]
    fn rule_applies_to_the_selected_calls() {
        let hang = || Rule::on(Rpc::StartContainer, Fault::Hang);
        for (case, rule, want) in [
            ("always", hang(), vec![1, 2, 3, 4]),
            ("the second", hang().nth(2), vec![2]),
            ("the first three", hang().first(3), vec![1, 2, 3]),
            ("never", hang().chance(0.0), vec![]),
            ("another call", Rule::on(Rpc::StopContainer, Fault::Hang), vec![]),
            ("another pod", hang().pod("db"), vec![]),
            ("this pod by its full name", hang().pod("default/web").nth(1), vec![1]),
            ("another container", hang().container("log"), vec![]),
            ("this container", hang().container("app").nth(4), vec![4]),
            ("a predicate", hang().only(|about| about.is_of("db")), vec![]),
        ] {
            assert_eq!(struck(rule, 4), want, "{case}");
        }
    }

    #[test]
    fn chance_is_drawn_from_the_seed() {
        let rule = || Rule::on_every_call(Fault::Hang).chance(0.5);
        let hits = struck(rule(), 100);
        assert!((25..75).contains(&hits.len()), "{}", hits.len());
        assert_eq!(struck(rule(), 100), hits);
    }

    #[test]
    fn delays_add_up_and_the_first_other_fault_decides() {
        let mut rules = Rules::new(Random::new(0, 0));
        let delay = |s| Fault::Delay(Duration::from_secs(s));
        for fault in [delay(1), Fault::Hang, delay(2), Fault::Disconnect] {
            rules.add(Rule::on_every_call(fault));
        }
        let verdict = rules.judge(Rpc::Version, &About::default());
        let want = Verdict { delay: Duration::from_secs(3), fault: Some(Fault::Hang) };
        assert_eq!(verdict, want);
        rules.clear();
        assert_eq!(rules.judge(Rpc::Version, &About::default()), Verdict::default());
    }
}
