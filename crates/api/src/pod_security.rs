//! Pod Security Standards: which pods a level allows, and the levels of a namespace.
//!
//! Levels, labels, order and messages are those of Kubernetes v1.36. Pods are JSON: the checks need
//! a few fields of a large type.

mod baseline;
mod restricted;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

/// Newest version with a policy of its own.
const LATEST: u32 = 36;
const PREFIX: &str = "pod-security.kubernetes.io/";

/// How much a pod may do, in the order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

/// Version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Latest,
    /// `v1.N`
    Minor(u32),
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::Latest);
        }
        let digits = text.strip_prefix("v1.")?;
        let plain = digits == "0" || !digits.starts_with('0');
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !plain || !is_number {
            return None;
        }
        digits.parse().ok().map(Self::Minor)
    }

    fn minor(self) -> u32 {
        match self {
            Self::Latest => LATEST,
            Self::Minor(minor) => minor,
        }
    }
}

/// A level at a version, shown as `baseline:latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl LevelVersion {
    const fn latest(level: Level) -> Self {
        Self { level, version: Version::Latest }
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Version::Latest => write!(f, "{}:latest", self.level),
            Version::Minor(minor) => write!(f, "{}:v1.{minor}", self.level),
        }
    }
}

/// Levels of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacePolicy {
    /// A pod below this level is refused.
    pub enforce: LevelVersion,
    /// A pod below this level gets a warning.
    pub warn: LevelVersion,
}

/// An invalid label: its key, its value, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelError {
    pub key: String,
    pub value: String,
    pub problem: &'static str,
}

const BAD_LEVEL: &str = "must be one of privileged, baseline, restricted";
const BAD_VERSION: &str = "must be \"latest\" or \"v1.x\"";

/// Levels from the labels of a namespace; `default` is enforced without a label. An invalid level to
/// enforce counts as restricted.
pub fn namespace_policy<'a>(
    label: impl Fn(&str) -> Option<&'a str>,
    default: Level,
) -> (NamespacePolicy, Vec<LabelError>) {
    let mut errors = Vec::new();
    let mut read = |mode: &str, default: Level, invalid: Level| {
        let mut found = LevelVersion::latest(default);
        let mut fail = |key: String, value: &str, problem| {
            errors.push(LabelError { key, value: value.to_owned(), problem });
        };
        let key = format!("{PREFIX}{mode}");
        let given = label(&key);
        let mut is_valid = false;
        if let Some(value) = given {
            is_valid = Level::parse(value).is_some();
            found.level = Level::parse(value).unwrap_or(invalid);
            if !is_valid {
                fail(key, value, BAD_LEVEL);
            }
        }
        let key = format!("{PREFIX}{mode}-version");
        let version = label(&key);
        if let Some(value) = version {
            found.version = Version::parse(value).unwrap_or(Version::Latest);
            if Version::parse(value).is_none() {
                fail(key, value, BAD_VERSION);
            }
        }
        (found, given.is_some(), is_valid, version.is_some())
    };
    let (enforce, _, has_enforce, _) = read("enforce", default, Level::Restricted);
    let _ = read("audit", Level::Privileged, Level::Privileged); // there is no audit log
    let (mut warn, has_warn, _, has_version) = read("warn", Level::Privileged, Level::Privileged);
    if !has_warn && has_enforce && enforce.level > warn.level {
        warn.level = enforce.level;
        if !has_version {
            warn.version = enforce.version;
        }
    }
    (NamespacePolicy { enforce, warn }, errors)
}

/// One reason why a level does not allow a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub reason: String,
    pub detail: String,
}

/// All reasons why a level does not allow a pod.
pub fn violations(policy: LevelVersion, pod: &Value) -> Vec<Violation> {
    let pod = PodView { pod, minor: policy.version.minor() };
    match policy.level {
        Level::Privileged => Vec::new(),
        Level::Baseline => baseline::check(&pod, |_| true),
        Level::Restricted => {
            let mut all = baseline::check(&pod, |check| !restricted::replaces(check, &pod));
            all.extend(restricted::check(&pod));
            all
        }
    }
}

/// All reasons with their details.
pub fn details(violations: &[Violation]) -> String {
    let shown = violations.iter().map(|Violation { reason, detail }| match detail.as_str() {
        "" => reason.clone(),
        detail => format!("{reason} ({detail})"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Warnings about pods that exist when a level is enforced: one per set of reasons, with the first
/// of the pods. `pods` are names and objects.
pub fn existing_pods<'a>(
    namespace: &str,
    enforce: LevelVersion,
    pods: impl IntoIterator<Item = (&'a str, &'a Value)>,
) -> Vec<String> {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, pod) in pods {
        let violations = violations(enforce, pod);
        if !violations.is_empty() {
            let reasons: Vec<&str> = violations.iter().map(|it| it.reason.as_str()).collect();
            found.entry(reasons.join(", ")).or_default().insert(name);
        }
    }
    let mut warnings: Vec<String> = found
        .iter()
        .map(|(reasons, names)| {
            let first = names.first().copied().unwrap_or_default();
            match names.len() {
                0 | 1 => format!("{first}: {reasons}"),
                2 => format!("{first} (and 1 other pod): {reasons}"),
                many => format!("{first} (and {} other pods): {reasons}", many - 1),
            }
        })
        .collect();
    warnings.sort_unstable();
    if !warnings.is_empty() {
        warnings.insert(
            0,
            format!(
                "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \
                 \"{enforce}\""
            ),
        );
    }
    warnings
}

/// Whether a change of a pod must be checked: a container was added or has another image.
pub fn is_significant(new: &Value, old: &Value) -> bool {
    let images = |pod: &Value, field: &str| -> Vec<(String, String)> {
        let containers = pod.pointer(&format!("/spec/{field}")).and_then(Value::as_array);
        let text = |it: &Value, name: &str| {
            it.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        containers.into_iter().flatten().map(|it| (text(it, "name"), text(it, "image"))).collect()
    };
    let changed = |field| images(new, field) != images(old, field);
    let before = images(old, "ephemeralContainers");
    changed("containers")
        || changed("initContainers")
        || images(new, "ephemeralContainers").iter().any(|it| !before.contains(it))
}

/// A pod and the version of the policy.
struct PodView<'a> {
    pod: &'a Value,
    minor: u32,
}

impl<'a> PodView<'a> {
    fn get(&self, pointer: &str) -> Option<&'a Value> {
        self.pod.pointer(pointer).filter(|value| !value.is_null())
    }

    fn list(&self, pointer: &str) -> &'a [Value] {
        list(self.pod, pointer)
    }

    /// Init containers, containers, ephemeral containers.
    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let lists = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];
        lists.map(|pointer| self.list(pointer)).into_iter().flatten()
    }

    /// Names of the containers for which `is_bad` holds, in order.
    fn bad_containers(&self, mut is_bad: impl FnMut(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|it| is_bad(it)).map(|it| text(it, "/name")).collect()
    }

    fn has_own_users(&self) -> bool {
        self.get("/spec/hostUsers") == Some(&Value::Bool(false))
    }

    /// From 1.35 on, some rules do not apply to pods with a user namespace.
    fn is_relaxed(&self) -> bool {
        self.minor >= 35 && self.has_own_users()
    }

    fn is_windows(&self) -> bool {
        self.minor >= 25 && self.get("/spec/os/name").and_then(Value::as_str) == Some("windows")
    }
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `"a", "b"`
fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let quoted = items.into_iter().map(|item| format!("\"{}\"", item.as_ref()));
    quoted.collect::<Vec<_>>().join(", ")
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

fn violation(reason: &str, detail: String) -> Violation {
    Violation { reason: reason.to_owned(), detail }
}

#[cfg(test)]
mod tests;
