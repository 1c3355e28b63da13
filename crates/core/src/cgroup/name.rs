//! Cgroup names and their paths under the cgroupfs and systemd drivers.
//!
//! A name is a list of components. On cgroupfs they are directories. For systemd each one is a
//! slice whose unit name repeats all components before it, joined by `-`, so a `-` in a component
//! is escaped as `_`. The escape must be reversible: the UID in the name of an orphaned cgroup is
//! the only information about its pod.
//!
//! UIDs are untrusted (a manifest may contain any) and become part of paths that root writes to and
//! deletes, so a component is checked before it becomes part of a name.

use std::fmt;

use podwright_api::qos::QosClass;
use serde::{Deserialize, Serialize};

use crate::ids::PodUid;

/// Cgroup driver: the owner of the directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    #[serde(rename = "cgroupfs")]
    Cgroupfs,
    #[serde(rename = "systemd")]
    Systemd,
}

/// A cgroup as components below the root of the hierarchy. Empty is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupName(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupNameError {
    #[error(
        "invalid cgroup name component {component:?}: use letters, digits, '.', ':' \
         and '-', at most {MAX_LENGTH} characters"
    )]
    Component { component: String },
    #[error("cgroup {path:?} is not a plain absolute path; remove '.', '..' and doubled slashes")]
    Path { path: String },
}

/// The kernel's limit on file names, less what systemd's prefixes and suffix may add.
const MAX_LENGTH: usize = 128;
const SLICE: &str = ".slice";
const POD: &str = "pod";

impl CgroupName {
    pub const ROOT: Self = Self(Vec::new());

    /// Parses a path from the configuration, such as `/` or `/system/runtime`.
    ///
    /// It names an existing cgroup, so the only requirement is a plain absolute path.
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

    /// Parses a reserved cgroup from the configuration in the driver's format: systemd cgroups are
    /// named by their slice, so only the last path component counts.
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
        // `_` is excluded: the systemd form uses it for `-`, so it would not be reversible.
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

    /// Absolute path within a hierarchy. The runtime gets the same path as the cgroup parent.
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

    /// systemd unit of this cgroup: `a-b-c.slice`; `-.slice` for the root.
    pub fn slice(&self) -> String {
        if self.0.is_empty() {
            return format!("-{SLICE}");
        }
        let parts: Vec<_> = self.0.iter().map(|component| escape(component)).collect();
        format!("{}{SLICE}", parts.join("-"))
    }

    /// Component of a directory directly below this cgroup, if the name is one of ours.
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

/// In cgroupfs form.
impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path(Driver::Cgroupfs))
    }
}

/// Cgroups of pods: `kubepods`, below it the QoS classes, below those the pods.
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

    /// Cgroup of all pods.
    pub fn all(&self) -> &CgroupName {
        &self.all
    }

    /// Cgroup of the pods of a QoS class. Guaranteed pods are directly below `kubepods`.
    pub fn class(&self, class: QosClass) -> CgroupName {
        match class {
            QosClass::Guaranteed => self.all.clone(),
            QosClass::Burstable => self.all.with("burstable".to_owned()),
            QosClass::BestEffort => self.all.with("besteffort".to_owned()),
        }
    }

    /// Cgroup of a pod, the parent of its containers.
    pub fn pod(&self, class: QosClass, uid: &PodUid) -> Result<CgroupName, CgroupNameError> {
        self.class(class).child(&format!("{POD}{uid}"))
    }

    /// The pod of a directory directly below a class's cgroup, if any.
    pub fn pod_of_entry(&self, class: QosClass, entry: &str, driver: Driver) -> Option<PodUid> {
        let parent = self.class(class);
        let component = parent.child_of_entry(entry, driver)?;
        let uid = component.strip_prefix(POD).filter(|uid| !uid.is_empty())?;
        // A name that we could not have created is not ours to remove.
        parent.child(&component).ok()?;
        Some(PodUid::new(uid))
    }
}
