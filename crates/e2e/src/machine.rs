//! Machine snapshot: everything on the machine that a node could change, for comparison.
//!
//! A test takes one before and one after and requires them to be identical. It covers objects that
//! are *not* the node's as well: a user's mount that was unmounted is as much a difference as a
//! mount that was left behind.
//!
//! A machine has other users, so a snapshot is only taken in [isolation](crate::isolation), where
//! mounts, processes, the network and /run belong to the case. The parts still shared with the
//! machine, cgroups and files on disk, are filtered by the lists in [`cgroups`] and [`files`], each
//! entry with its reason.

mod cgroups;
mod files;
mod mounts;
mod network;
mod packet_filter;
mod processes;
mod sysctls;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

pub(crate) use processes::start_time;

use crate::isolation;
use crate::netns::NetNs;

/// The current thread, which [may be in another network namespace](NetNs::within) than its process.
const THREAD: &str = "/proc/thread-self";

/// Kind of a snapshot entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Mount,
    File,
    Process,
    Link,
    Route,
    Rule,
    Sysctl,
    Cgroup,
    LoopDevice,
    UnixSocket,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Mount => "mount",
            Self::File => "file",
            Self::Process => "process",
            Self::Link => "link",
            Self::Route => "route",
            Self::Rule => "rule",
            Self::Sysctl => "sysctl",
            Self::Cgroup => "cgroup",
            Self::LoopDevice => "loop device",
            Self::UnixSocket => "unix socket",
        })
    }
}

/// One object on the machine: its name, and every property that must not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    pub detail: String,
}

impl Entry {
    fn new(kind: Kind, name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind, name: name.into(), detail: detail.into() }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.kind, self.name)?;
        if self.detail.is_empty() { Ok(()) } else { write!(out, ": {}", self.detail) }
    }
}

/// Directories excluded from a snapshot in addition to the fixed list in [`files`]: those of the
/// node under test while it runs. Only their files are excluded; mounts there count.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    excluded: Vec<(PathBuf, String)>,
}

impl Scope {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn without_files_of(mut self, directory: impl Into<PathBuf>, reason: &str) -> Self {
        self.excluded.push((directory.into(), reason.to_owned()));
        self
    }

    fn excludes(&self, path: &Path) -> bool {
        self.excluded.iter().any(|(directory, _)| path == directory)
    }
}

/// The state of the machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSnapshot(BTreeMap<(Kind, String), String>);

/// What differs between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub added: Vec<Entry>,
    pub removed: Vec<Entry>,
    /// As it was, and its current description.
    pub changed: Vec<(Entry, String)>,
}

impl MachineSnapshot {
    /// Takes a snapshot of the machine and of this thread's network namespace.
    pub fn take(scope: &Scope) -> Result<Self> {
        ensure!(
            isolation::inside() && rustix::process::geteuid().is_root(),
            "machine snapshot: requires root and isolation, where no other test changes the machine"
        );
        let mut entries = mounts::entries()?;
        entries.extend(files::entries(scope)?);
        entries.extend(processes::entries()?);
        entries.extend(network::entries()?);
        entries.extend(packet_filter::entries()?);
        entries.extend(sysctls::entries());
        entries.extend(cgroups::entries()?);
        Ok(entries.into_iter().collect())
    }

    /// Like [`Self::take`], with the network of a namespace.
    pub async fn take_in(netns: &NetNs, scope: &Scope) -> Result<Self> {
        let scope = scope.clone();
        let inspect = move || Self::take(&scope).map_err(std::io::Error::other);
        Ok(netns.within(inspect).await?)
    }

    /// Changes from this snapshot to a `later` one.
    pub fn difference(&self, later: &Self) -> Difference {
        let entry =
            |((kind, name), detail): (&(Kind, String), &String)| Entry::new(*kind, name, detail);
        let only = |these: &Self, those: &Self| {
            let these = these.0.iter().filter(|(key, _)| !those.0.contains_key(*key));
            these.map(entry).collect()
        };
        let changed = self.0.iter().filter_map(|(key, was)| {
            let is = later.0.get(key).filter(|is| *is != was)?;
            Some((entry((key, was)), is.clone()))
        });
        Difference {
            added: only(later, self),
            removed: only(self, later),
            changed: changed.collect(),
        }
    }

    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.0.iter().map(|((kind, name), detail)| Entry::new(*kind, name, detail))
    }
}

impl FromIterator<Entry> for MachineSnapshot {
    /// Objects with the same kind and name, such as two mounts at one point, are numbered.
    fn from_iter<T: IntoIterator<Item = Entry>>(entries: T) -> Self {
        let mut all = BTreeMap::new();
        for Entry { kind, name, detail } in entries {
            let mut key = (kind, name.clone());
            let mut number = 1;
            while all.contains_key(&key) {
                number += 1;
                key.1 = format!("{name} ({number})");
            }
            all.insert(key, detail);
        }
        Self(all)
    }
}

impl Difference {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// Without the entries selected by `expected`, which the case itself checks.
    #[must_use]
    pub fn without(mut self, expected: impl Fn(&Entry) -> bool) -> Self {
        self.added.retain(|entry| !expected(entry));
        self.removed.retain(|entry| !expected(entry));
        self.changed.retain(|(entry, _)| !expected(entry));
        self
    }

    /// Without the cgroups of others: see [`cgroups`]. `names` mark those of this test.
    #[must_use]
    pub fn without_cgroups_of_others(self, names: &[&str]) -> Self {
        self.without(|entry| entry.kind == Kind::Cgroup && cgroups::of_others(&entry.name, names))
    }

    /// Whether an entry of this kind, with this text in its description, was added, removed or
    /// changed.
    pub fn names(&self, kind: Kind, text: &str) -> bool {
        let (reported, kind) = (self.to_string(), format!("{kind} "));
        let mut lines = reported.lines().filter_map(|line| line.get(2..));
        lines.any(|line| line.starts_with(&kind) && line.contains(text))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.removed {
            writeln!(out, "- {entry}")?;
        }
        for entry in &self.added {
            writeln!(out, "+ {entry}")?;
        }
        for (entry, now) in &self.changed {
            writeln!(out, "~ {entry}  ->  {now}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, &str)]) -> MachineSnapshot {
        entries.iter().map(|(name, detail)| Entry::new(Kind::Mount, *name, *detail)).collect()
    }

    #[test]
    fn difference_names_what_was_added_removed_and_changed() {
        let before = snapshot(&[("/gone", "tmpfs"), ("/same", "ext4"), ("/other", "shared")]);
        let after = snapshot(&[("/new", "tmpfs"), ("/same", "ext4"), ("/other", "private")]);
        let difference = before.difference(&after);
        assert_eq!(
            difference.to_string(),
            "- mount /gone: tmpfs\n+ mount /new: tmpfs\n~ mount /other: shared  ->  private\n"
        );
        assert!(difference.names(Kind::Mount, "/other") && !difference.names(Kind::File, "/other"));
        assert!(before.difference(&before).is_empty());
    }

    #[test]
    fn entries_with_same_name_both_count() {
        let before = snapshot(&[("/twice", "tmpfs"), ("/twice", "tmpfs")]);
        let after = snapshot(&[("/twice", "tmpfs")]);
        assert_eq!(before.difference(&after).to_string(), "- mount /twice (2): tmpfs\n");
    }

    #[test]
    fn snapshot_without_isolation_is_an_error() {
        if !isolation::inside() {
            assert!(MachineSnapshot::take(&Scope::new()).is_err());
        }
    }
}
