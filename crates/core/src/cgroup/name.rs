//! Where the groups are, in the words of either driver.
//!
//! A group's name is a list of components. On a plain cgroup filesystem they are directories; for
//! systemd each one is a slice whose unit name repeats all before it, joined by `-`, so a `-` of
//! ours has to become `_` and must find its way back: the UID in a left-over group's name is all
//! that we know of a pod that is gone.
//!
//! UIDs come from the outside (a manifest may carry any), and end up in paths that root writes to
//! and deletes; so a component is checked before it becomes part of a name.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::PodUid;
use crate::qos::QosClass;

/// Who makes the directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    #[serde(rename = "cgroupfs")]
    Cgroupfs,
    #[serde(rename = "systemd")]
    Systemd,
}

/// A group, as components below the root of the hierarchy. Empty is the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupName(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupNameError {
    #[error(
        "{component:?} cannot be part of a cgroup's name: it may have letters, digits, '.', ':' \
         and '-', and at most {MAX_LENGTH} of them"
    )]
    Component { component: String },
    #[error("cgroup {path:?} is not a plain absolute path; remove '.', '..' and doubled slashes")]
    Path { path: String },
}

/// The kernel's limit on a file's name, less what systemd's prefixes and suffix may add.
const MAX_LENGTH: usize = 128;
const SLICE: &str = ".slice";
const POD: &str = "pod";

impl CgroupName {
    pub const ROOT: Self = Self(Vec::new());

    /// A path from the configuration, such as `/` or `/system/runtime`.
    ///
    /// It names what exists, so it is held only to being a path that stays where it says.
    pub fn parse(path: &str) -> Result<Self, CgroupNameError> {
        let path_error = || CgroupNameError::Path { path: path.to_owned() };
        let below = path.strip_prefix('/').unwrap_or(path);
        let below = below.strip_suffix('/').unwrap_or(below);
        if below.is_empty() {
            return Ok(Self::ROOT);
        }
        let plain = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains('\0');
        if !below.split('/').all(|part| plain(&part)) {
            return Err(path_error());
        }
        Ok(Self(below.split('/').map(str::to_owned).collect()))
    }

    /// A group of the system's from the configuration, in the words of the driver: systemd's are
    /// named by their slice, of which only the last part of a path counts.
    pub fn parse_reserved(path: &str, driver: Driver) -> Result<Self, CgroupNameError> {
        match driver {
            Driver::Cgroupfs => Self::parse(path),
            Driver::Systemd => {
                let Self(parts) = Self::parse(path)?;
                let Some(slice) = parts.last() else { return Ok(Self::ROOT) };
                let name = slice.strip_suffix(SLICE).unwrap_or(slice);
                Self::parse(&name.replace('-', "/").replace('_', "-"))
            }
        }
    }

    pub fn child(&self, component: &str) -> Result<Self, CgroupNameError> {
        // No `_`: it is what systemd's form makes of `-`, and would come back as that.
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'-');
        let ok = (1..=MAX_LENGTH).contains(&component.len())
            && component.bytes().all(allowed)
            && component.bytes().any(|b| b != b'.');
        if !ok {
            return Err(CgroupNameError::Component { component: component.to_owned() });
        }
        Ok(self.with(component.to_owned()))
    }

    fn with(&self, component: String) -> Self {
        let mut components = self.0.clone();
        components.push(component);
        Self(components)
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }

    /// The absolute path within a hierarchy. This is also what the runtime gets as the parent.
    pub fn path(&self, driver: Driver) -> String {
        match driver {
            Driver::Cgroupfs => format!("/{}", self.0.join("/")),
            Driver::Systemd => self.slice_path(),
        }
    }

    /// `/a.slice/a-b.slice/a-b-c.slice`
    fn slice_path(&self) -> String {
        let mut path = String::new();
        let mut prefix = String::new();
        for component in &self.0 {
            prefix.push_str(&escape(component));
            path.push('/');
            path.push_str(&prefix);
            path.push_str(SLICE);
            prefix.push('-');
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }

    /// The systemd unit of this group: `a-b-c.slice`; `-.slice` for the root.
    pub fn slice(&self) -> String {
        if self.0.is_empty() {
            return format!("-{SLICE}");
        }
        let parts: Vec<_> = self.0.iter().map(|component| escape(component)).collect();
        format!("{}{SLICE}", parts.join("-"))
    }

    /// The component that a directory directly below this group stands for, if it is one of ours.
    fn child_of_entry<'a>(
        &self,
        entry: &'a str,
        driver: Driver,
    ) -> Option<std::borrow::Cow<'a, str>> {
        match driver {
            Driver::Cgroupfs => Some(entry.into()),
            Driver::Systemd => {
                let own = self.slice();
                let prefix = own.strip_suffix(SLICE).unwrap_or(&own);
                let child = entry.strip_suffix(SLICE)?;
                let child = if self.is_root() {
                    child
                } else {
                    child.strip_prefix(prefix)?.strip_prefix('-')?
                };
                (!child.contains('-')).then(|| child.replace('_', "-").into())
            }
        }
    }
}

fn escape(component: &str) -> String {
    component.replace('-', "_")
}

/// As on a plain cgroup filesystem.
impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path(Driver::Cgroupfs))
    }
}

/// The groups of pods: `kubepods`, in it the QoS classes, in those the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTree {
    #[serde(rename = "all")]
    all: CgroupName,
}

impl PodTree {
    /// Below the configured `cgroupRoot`, which must exist.
    pub fn below(root: &CgroupName) -> Self {
        Self { all: root.with("kubepods".to_owned()) }
    }

    /// The group around all pods.
    pub fn all(&self) -> &CgroupName {
        &self.all
    }

    /// The group around the pods of a class. Guaranteed pods have none of their own.
    pub fn class(&self, class: QosClass) -> CgroupName {
        match class {
            QosClass::Guaranteed => self.all.clone(),
            QosClass::Burstable => self.all.with("burstable".to_owned()),
            QosClass::BestEffort => self.all.with("besteffort".to_owned()),
        }
    }

    /// The group around a pod's containers.
    pub fn pod(&self, class: QosClass, uid: &PodUid) -> Result<CgroupName, CgroupNameError> {
        self.class(class).child(&format!("{POD}{uid}"))
    }

    /// Which pod a directory directly below a class's group belongs to, if any.
    pub fn pod_of_entry(&self, class: QosClass, entry: &str, driver: Driver) -> Option<PodUid> {
        let parent = self.class(class);
        let component = parent.child_of_entry(entry, driver)?;
        let uid = component.strip_prefix(POD).filter(|uid| !uid.is_empty())?;
        // A name that we could not have made is not ours to take down.
        parent.child(&component).ok()?;
        Some(PodUid::new(uid))
    }
}
