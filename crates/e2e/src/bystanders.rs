//! Bystanders: objects of a user around a node that must stay untouched.
//!
//! A node that unmounts, deletes, kills or rewrites more than it created harms its machine, and a
//! test that checks only the node's own objects does not notice. So every bed has mounts, files,
//! processes, links and packet filter rules of a user beside and inside the node's directories and
//! cgroups. [`Bed::close`](crate::bed::Bed::close) verifies them for every case.
//!
//! Not bystanders, because the upstream kubelet removes or changes them too, so that a user loses
//! them on any node:
//! - a plain directory in `pods`: it is treated as the directory of an orphaned pod;
//! - a directory in `podLogsDir` with a name of the form `NAMESPACE_NAME_UID` (upstream treats
//!   every name there as one: see [`Kubelet::Other`]);
//! - a link in /var/log/containers into `podLogsDir` whose target does not exist;
//! - a cgroup below the node's `kubepods`, with the processes in it;
//! - a sandbox with the labels of a Kubernetes pod in the node's runtime: it is an orphaned pod;
//! - a private mount below the root directory: the whole tree becomes shared so that pods can have
//!   `mountPropagation`. The mounts here are shared from the start.

mod disk;
mod network;
mod process;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

use crate::environment::TestEnvironment;
use disk::{UserFile, UserMount};
use network::UserNetwork;
use process::UserProcess;

/// File systems in a state directory, created after `up` has created the directory.
pub const STATE_DIRECTORY_BYSTANDER: &str = "user-state-disk";

/// Name prefix of every bystander.
const USER: &str = "user-";

/// Which kubelet runs: some bystanders are left alone only by Podwright.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    Ours,
    Other,
}

/// The directories of an agent that get bystanders.
pub(crate) struct AgentDirectories<'a> {
    /// Its directory in the bed.
    pub(crate) directory: &'a Path,
    /// Name of its cgroup root below the bed's cgroup.
    pub(crate) cgroup: &'a str,
    pub(crate) kubelet: Kubelet,
}

#[derive(Default)]
pub struct Bystanders(Mutex<BystanderSet>);

#[derive(Default)]
struct BystanderSet {
    mounts: Vec<UserMount>,
    files: Vec<UserFile>,
    processes: Vec<UserProcess>,
    network: Option<UserNetwork>,
    /// Directories that already have bystanders: an agent may be started there again.
    places: BTreeSet<PathBuf>,
}

impl Bystanders {
    /// Creates the bystanders that every bed has.
    pub(crate) fn create(environment: &TestEnvironment) -> Result<Self> {
        let mut set = BystanderSet {
            network: Some(UserNetwork::create(environment.netns().clone())?),
            ..BystanderSet::default()
        };
        let beside = UserProcess::start(environment, "user-group")?;
        set.processes.push(beside);
        set.mount_tree(&environment.path("user-disk"))?;
        for file in ["user-notes.txt", "cni/user-notes.txt", "cni-data/user-notes.txt"] {
            set.file(&environment.path(file))?;
        }
        Ok(Self(Mutex::new(set)))
    }

    /// Creates those inside the directories of an agent and beside the cgroups of its pods.
    pub(crate) fn create_around(
        &self,
        environment: &TestEnvironment,
        places: &AgentDirectories<'_>,
    ) -> Result<()> {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let AgentDirectories { directory, cgroup, kubelet } = places;
        if !set.places.insert(directory.to_path_buf()) {
            return Ok(());
        }
        set.mount_tree(&directory.join("root/user-disk"))?;
        set.mount_tree(&directory.join("root/pods/user-disk"))?;
        for file in [
            "user-notes.txt",
            "root/user-notes.txt",
            "containers/user-notes.log",
            "manifests/.user-notes",
            "certificates/user-notes.pem",
            "plugins/user-notes.txt",
        ] {
            set.file(&directory.join(file))?;
        }
        if *kubelet == Kubelet::Ours {
            set.file(&directory.join("pod-logs/user-notes.log"))?;
            set.file(&directory.join("pod-logs/user-service/app.log"))?;
        }
        let inside = UserProcess::start(environment, &format!("{cgroup}/user-group"))?;
        set.processes.push(inside);
        Ok(())
    }

    /// Creates those inside the state directory of `up`, after `up` has created it.
    pub fn create_in_state_directory(&self, state: &Path) -> Result<()> {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !set.places.insert(state.to_path_buf()) {
            return Ok(());
        }
        set.mount_tree(&state.join(STATE_DIRECTORY_BYSTANDER))?;
        set.file(&state.join("user-notes.txt"))
    }

    /// Creates a shared file system with another one mounted in it, at a path that the case
    /// selects.
    pub fn create_mounts(&self, point: &Path) -> Result<()> {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        set.mount_tree(point)
    }

    /// The changes to bystanders, one line each.
    pub fn damage(&self) -> Vec<String> {
        let set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut damage: Vec<String> = set.mounts.iter().filter_map(UserMount::damage).collect();
        damage.extend(set.files.iter().filter_map(UserFile::damage));
        damage.extend(set.processes.iter().flat_map(UserProcess::damage));
        damage.extend(set.network.iter().flat_map(UserNetwork::damage));
        damage
    }

    /// Fails with the list of changes unless all bystanders are unchanged.
    pub fn verify(&self) -> Result<()> {
        let damage = self.damage();
        if !damage.is_empty() {
            bail!("the node changed objects that are not its own:\n  {}", damage.join("\n  "));
        }
        Ok(())
    }

    /// [`Self::verify`], in the middle of a case.
    #[allow(clippy::panic, reason = "this is an assertion of a test")]
    pub fn assert_untouched(&self) {
        if let Err(error) = self.verify() {
            panic!("{error:#}");
        }
    }

    /// Whether the path belongs to a bystander: for cases that list a directory.
    pub fn is_one(path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.trim_start_matches('.').starts_with(USER)
    }
}

impl BystanderSet {
    fn file(&mut self, path: &Path) -> Result<()> {
        self.files.push(UserFile::write(path)?);
        Ok(())
    }

    /// A shared file system with another one mounted in it, and a file in each.
    fn mount_tree(&mut self, point: &Path) -> Result<()> {
        for point in [point.to_owned(), point.join("inner")] {
            self.mounts.push(UserMount::mount(&point)?);
            self.files.push(UserFile::write(&point.join("user-data"))?);
        }
        Ok(())
    }
}
