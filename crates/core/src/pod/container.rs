//! Parsed container: kind, restart policy and rules, and whether an exit leads to a restart.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use serde::{Deserialize, Serialize};

use super::{ParseMode, PodParseError};
use crate::ids::PodName;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    #[serde(rename = "Always")]
    Always,
    #[serde(rename = "OnFailure")]
    OnFailure,
    #[serde(rename = "Never")]
    Never,
}

impl RestartPolicy {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    fn after(self, exit_code: i32) -> AfterExit {
        match self {
            Self::Always => AfterExit::Restart,
            Self::OnFailure if exit_code != 0 => AfterExit::Restart,
            Self::OnFailure | Self::Never => AfterExit::Stay,
        }
    }
}

/// Consequence of a container's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExit {
    Restart,
    /// Every container of the pod is restarted (`action: RestartAllContainers`).
    RestartAll,
    Stay,
}

/// One entry of `restartPolicyRules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartRule {
    /// `None`: an action that this agent does not know. As upstream, the rule decides nothing and
    /// hides the rules after it.
    pub then: Option<AfterExit>,
    /// Operator `In`: the listed codes match; otherwise `NotIn`: all other codes match.
    pub listed: bool,
    pub codes: Vec<i32>,
}

impl RestartRule {
    fn matches(&self, exit_code: i32) -> bool {
        self.codes.contains(&exit_code) == self.listed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ContainerKind {
    /// Runs to completion before the next one starts.
    #[serde(rename = "Init")]
    Init,
    /// An init container with `restartPolicy: Always`: starts in order, runs as long as the pod.
    #[serde(rename = "Sidecar")]
    Sidecar,
    #[serde(rename = "Regular")]
    Regular,
    #[serde(rename = "Ephemeral")]
    Ephemeral,
}

impl ContainerKind {
    pub fn is_init(self) -> bool {
        match self {
            Self::Init | Self::Sidecar => true,
            Self::Regular | Self::Ephemeral => false,
        }
    }

    /// Plain init and ephemeral containers are never probed.
    pub fn is_probed(self) -> bool {
        match self {
            Self::Sidecar | Self::Regular => true,
            Self::Init | Self::Ephemeral => false,
        }
    }

    /// Field of the spec that lists this kind, as used in event field paths.
    pub fn spec_field(self) -> &'static str {
        match self {
            Self::Init | Self::Sidecar => "initContainers",
            Self::Regular => "containers",
            Self::Ephemeral => "ephemeralContainers",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    #[serde(rename = "Startup")]
    Startup,
    #[serde(rename = "Readiness")]
    Readiness,
    #[serde(rename = "Liveness")]
    Liveness,
}

impl ProbeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// Hash of name and image: a container with another hash is restarted. Computed exactly as
/// upstream does, so that taking over a node restarts nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContainerHash(pub u32);

impl ContainerHash {
    pub fn of(name: &str, image: &str) -> Self {
        let json = format!(r#"{{"image":{},"name":{}}}"#, go_json(image), go_json(name));
        // Upstream hashes Go's dump of a byte slice, not the bytes.
        let mut dump = String::from("([]uint8)[");
        for (i, byte) in json.bytes().enumerate() {
            if i > 0 {
                dump.push(' ');
            }
            dump.push_str(&byte.to_string());
        }
        dump.push(']');
        Self(fnv1a_32(dump.as_bytes()))
    }

    pub fn parse(text: &str) -> Option<Self> {
        u32::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for ContainerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for ContainerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContainerHash({self})")
    }
}

fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A JSON string as Go's encoder writes it: HTML characters are escaped too.
fn go_json(text: &str) -> String {
    let plain = serde_json::Value::from(text).to_string();
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

#[derive(Clone, Debug)]
pub struct Container {
    pub name: Arc<str>,
    pub kind: ContainerKind,
    pub image: Arc<str>,
    pub hash: ContainerHash,
    /// The container's own policy, which overrides the pod's. `None` also for an unknown policy.
    pub policy: Option<RestartPolicy>,
    pub rules: Vec<RestartRule>,
    /// The spec as written. An ephemeral container's is converted to the common form.
    pub spec: Arc<v1::Container>,
    /// Target of an ephemeral container: the container whose processes it shares.
    pub target: Option<Arc<str>>,
    /// Changes with image and resources: an edited container starts without back-off.
    pub backoff_key: u64,
}

impl Container {
    /// Decides what happens after an exit with this code. A sidecar is always restarted, alone or
    /// with all others. Not used for an init container that succeeded, which is done under any
    /// policy.
    pub fn after_exit(&self, exit_code: i32, pod: RestartPolicy) -> AfterExit {
        let rule = self.rules.iter().find(|rule| rule.matches(exit_code));
        let rule = rule.and_then(|rule| rule.then);
        match self.kind {
            ContainerKind::Sidecar => rule.unwrap_or(AfterExit::Restart),
            ContainerKind::Ephemeral => AfterExit::Stay,
            ContainerKind::Init | ContainerKind::Regular => {
                rule.unwrap_or_else(|| self.policy.unwrap_or(pod).after(exit_code))
            }
        }
    }

    /// Whether a container killed because of a failed probe is restarted. Restart rules do not
    /// apply.
    pub fn restarts_after_probe_failure(&self, pod: RestartPolicy) -> bool {
        match self.has_own_policy() {
            true => self.policy != Some(RestartPolicy::Never),
            false => pod != RestartPolicy::Never,
        }
    }

    /// Whether the spec has a container-level policy, even an unknown one.
    fn has_own_policy(&self) -> bool {
        own_policy(&self.spec).is_some()
    }

    pub fn probe(&self, kind: ProbeKind) -> Option<&v1::Probe> {
        if !self.kind.is_probed() {
            return None;
        }
        match kind {
            ProbeKind::Startup => self.spec.startup_probe.as_ref(),
            ProbeKind::Readiness => self.spec.readiness_probe.as_ref(),
            ProbeKind::Liveness => self.spec.liveness_probe.as_ref(),
        }
    }

    /// The probe's own grace period, which overrides the pod's when the probe kills the container.
    pub fn probe_grace(&self, kind: ProbeKind) -> Option<Duration> {
        let grace = self.probe(kind)?.termination_grace_period_seconds?;
        u64::try_from(grace).ok().map(Duration::from_secs)
    }

    pub fn pre_stop(&self) -> Option<&v1::LifecycleHandler> {
        self.spec.lifecycle.as_ref()?.pre_stop.as_ref()
    }

    pub fn post_start(&self) -> Option<&v1::LifecycleHandler> {
        self.spec.lifecycle.as_ref()?.post_start.as_ref()
    }

    /// `spec.containers{name}`, the field path in events about this container.
    pub fn field_path(&self) -> String {
        format!("spec.{}{{{}}}", self.kind.spec_field(), self.name)
    }
}

/// Parse error of one container.
#[derive(Debug)]
pub(super) enum BadContainer {
    Nameless(ContainerKind),
    Field { container: String, problem: String },
}

impl BadContainer {
    pub(super) fn of_pod(self, pod: &PodName) -> PodParseError {
        let name = pod.to_string();
        match self {
            Self::Nameless(kind) => {
                PodParseError::NamelessContainer { name, list: kind.spec_field() }
            }
            Self::Field { container, problem } => {
                PodParseError::Container { name, container, problem }
            }
        }
    }
}

/// Every container that can be parsed, and the errors of the others.
pub(super) fn parse_all(
    spec: &v1::PodSpec,
    mode: ParseMode,
) -> (Vec<Container>, Vec<BadContainer>) {
    let init = spec.init_containers.iter().flatten().map(|c| {
        let sidecar = c.restart_policy.as_deref() == Some("Always");
        let kind = if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init };
        parse(c.clone(), kind, mode)
    });
    let regular = spec.containers.iter().map(|c| parse(c.clone(), ContainerKind::Regular, mode));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| {
        let parsed = parse(plain(c), ContainerKind::Ephemeral, mode)?;
        let target = c.target_container_name.as_deref().filter(|t| !t.is_empty()).map(Arc::from);
        Ok(Container { target, ..parsed })
    });
    let (mut all, mut problems) = (Vec::with_capacity(spec.containers.len()), Vec::new());
    for parsed in init.chain(regular).chain(ephemeral) {
        match parsed {
            Ok(container) => all.push(container),
            Err(problem) => problems.push(problem),
        }
    }
    (all, problems)
}

fn own_policy(spec: &v1::Container) -> Option<&str> {
    spec.restart_policy.as_deref().filter(|policy| !policy.is_empty())
}

fn parse(
    spec: v1::Container,
    kind: ContainerKind,
    mode: ParseMode,
) -> Result<Container, BadContainer> {
    if spec.name.is_empty() {
        return Err(BadContainer::Nameless(kind));
    }
    let bad = |problem| BadContainer::Field { container: spec.name.clone(), problem };
    let own = own_policy(&spec);
    let policy = own.and_then(RestartPolicy::parse);
    if let (Some(text), None, ParseMode::Strict) = (own, policy, mode) {
        return Err(bad(format!(
            "restartPolicy is {text:?}; it may be Always, OnFailure or Never"
        )));
    }
    let mut rules = Vec::new();
    // Upstream reads rules only if the container has its own policy.
    if own.is_some() {
        for rule in spec.restart_policy_rules.iter().flatten() {
            match (parse_rule(rule), mode) {
                (Ok(rule), _) => rules.push(rule),
                (Err(problem), ParseMode::Strict) => return Err(bad(problem)),
                (Err(_), ParseMode::Lenient) => rules.extend(known_part(rule)),
            }
        }
    }
    let image: Arc<str> = spec.image.as_deref().unwrap_or_default().into();
    Ok(Container {
        name: spec.name.as_str().into(),
        kind,
        hash: ContainerHash::of(&spec.name, &image),
        policy,
        rules,
        target: None,
        backoff_key: backoff_key(&image, spec.resources.as_ref()),
        image,
        spec: Arc::new(spec),
    })
}

fn parse_rule(rule: &v1::ContainerRestartRule) -> Result<RestartRule, String> {
    let then = match rule.action.as_str() {
        "Restart" => AfterExit::Restart,
        "RestartAllContainers" => AfterExit::RestartAll,
        other => {
            return Err(format!(
                "a restart rule's action is {other:?}; it may be Restart or RestartAllContainers"
            ));
        }
    };
    let Some(exit_codes) = &rule.exit_codes else {
        return Err("a restart rule has no exitCodes".into());
    };
    let listed = match exit_codes.operator.as_str() {
        "In" => true,
        "NotIn" => false,
        other => {
            return Err(format!(
                "a restart rule's exitCodes operator is {other:?}; it may be In or NotIn"
            ));
        }
    };
    let codes = exit_codes.values.clone().unwrap_or_default();
    Ok(RestartRule { then: Some(then), listed, codes })
}

/// The usable part of a rule that this agent does not fully know. As upstream, a rule without
/// comparable exit codes never matches.
fn known_part(rule: &v1::ContainerRestartRule) -> Option<RestartRule> {
    let exit_codes = rule.exit_codes.as_ref()?;
    let listed = match exit_codes.operator.as_str() {
        "In" => true,
        "NotIn" => false,
        _ => return None,
    };
    let codes = exit_codes.values.clone().unwrap_or_default();
    Some(RestartRule { then: None, listed, codes })
}

fn backoff_key(image: &str, resources: Option<&v1::ResourceRequirements>) -> u64 {
    let resources = resources.and_then(|r| serde_json::to_string(r).ok()).unwrap_or_default();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = image.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    resources.as_bytes().iter().fold(fnv(hash, &0), fnv)
}

/// An ephemeral container has the same fields under another type.
fn plain(c: &v1::EphemeralContainer) -> v1::Container {
    let c = c.clone();
    v1::Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_equals_upstreams() {
        assert_eq!(ContainerHash::of("test_container", "foo/image:v1").to_string(), "8e45cbd0");
        assert_eq!(
            ContainerHash::of("c", "docker.io/library/busybox:latest").to_string(),
            "8468e76c"
        );
    }

    fn container(
        kind: ContainerKind,
        policy: Option<&str>,
        rules: &[(&str, &str, i32)],
    ) -> Container {
        let rules = rules
            .iter()
            .map(|(action, operator, code)| v1::ContainerRestartRule {
                action: (*action).into(),
                exit_codes: Some(v1::ContainerRestartRuleOnExitCodes {
                    operator: (*operator).into(),
                    values: Some(vec![*code]),
                }),
            })
            .collect();
        let spec = v1::Container {
            name: "c".into(),
            restart_policy: policy.map(Into::into),
            restart_policy_rules: Some(rules),
            ..Default::default()
        };
        parse(spec, kind, ParseMode::Lenient).unwrap()
    }

    #[test]
    fn restart_rules_override_the_container_policy_which_overrides_the_pods() {
        use AfterExit::{Restart, RestartAll, Stay};
        use ContainerKind::{Ephemeral, Init, Regular, Sidecar};
        use RestartPolicy::{Always, Never, OnFailure};
        for (case, kind, own, rules, pod, code, want) in [
            ("pod policy Always", Regular, None, &[][..], Always, 0, Restart),
            ("pod policy OnFailure, success", Regular, None, &[], OnFailure, 0, Stay),
            ("pod policy OnFailure, failure", Regular, None, &[], OnFailure, 1, Restart),
            ("pod policy Never", Regular, None, &[], Never, 1, Stay),
            ("own policy beats the pod's", Regular, Some("Always"), &[], Never, 1, Restart),
            (
                "a rule beats both",
                Regular,
                Some("Never"),
                &[("Restart", "In", 42)],
                Never,
                42,
                Restart,
            ),
            (
                "a rule for another code",
                Regular,
                Some("Never"),
                &[("Restart", "In", 42)],
                Always,
                1,
                Stay,
            ),
            ("NotIn", Regular, Some("Never"), &[("Restart", "NotIn", 42)], Never, 1, Restart),
            (
                "restart all",
                Regular,
                Some("Never"),
                &[("RestartAllContainers", "In", 7)],
                Never,
                7,
                RestartAll,
            ),
            (
                "rules without an own policy are not read",
                Regular,
                None,
                &[("Restart", "In", 42)],
                Never,
                42,
                Stay,
            ),
            ("a failed init container", Init, None, &[], Always, 1, Restart),
            ("a failed init container, Never", Init, None, &[], Never, 1, Stay),
            ("a sidecar is always restarted", Sidecar, Some("Always"), &[], Never, 0, Restart),
            (
                "a sidecar's rule may restart all",
                Sidecar,
                Some("Always"),
                &[("RestartAllContainers", "In", 7)],
                Never,
                7,
                RestartAll,
            ),
            ("an ephemeral container is never restarted", Ephemeral, None, &[], Always, 1, Stay),
            (
                "an unknown own policy falls back to the pod's",
                Regular,
                Some("Odd"),
                &[],
                Never,
                1,
                Stay,
            ),
            (
                "its rules are read all the same",
                Regular,
                Some("Odd"),
                &[("Restart", "In", 42)],
                Never,
                42,
                Restart,
            ),
            (
                "a rule with an unknown operator never matches",
                Regular,
                Some("Never"),
                &[("Restart", "Near", 42), ("Restart", "In", 42)],
                Never,
                42,
                Restart,
            ),
            (
                "a rule with an unknown action falls back to the policy",
                Regular,
                Some("Never"),
                &[("Sleep", "In", 42), ("Restart", "In", 42)],
                Never,
                42,
                Stay,
            ),
        ] {
            assert_eq!(container(kind, own, rules).after_exit(code, pod), want, "{case}");
        }
    }

    #[test]
    fn container_killed_by_its_probe_restarts_unless_a_policy_is_never() {
        use RestartPolicy::{Always, Never};
        for (own, pod, want) in [
            (None, Always, true),
            (None, Never, false),
            (Some("Never"), Always, false),
            (Some("OnFailure"), Never, true),
            // Upstream checks only whether it is Never.
            (Some("Odd"), Never, true),
        ] {
            let container = container(ContainerKind::Regular, own, &[]);
            assert_eq!(container.restarts_after_probe_failure(pod), want, "{own:?} {pod:?}");
        }
    }
}
