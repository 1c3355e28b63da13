//! Bystanders: things of a user's own that lie in the way of a node and have to stay untouched.
//!
//! A node that unmounts, deletes, kills or rewrites more than what it made itself harms its machine,
//! and a test that looks only at what the node made does not see it. So every bed has mounts, files,
//! processes, links and packet filter rules of a user's beside and inside the node's directories and
//! cgroups. [`Bed::close`](crate::bed::Bed::close) verifies them, for every case.
//!
//! Not bystanders, because upstream's kubelet removes or changes them too, and a user who puts them
//! there loses them on any node:
//! - a plain directory in `pods`: it is the directory of a pod that is unknown, and goes as one;
//! - a directory in `podLogsDir` whose name looks like a pod's, `NAMESPACE_NAME_UID` (upstream takes
//!   every name there for one: see [`Kubelet::Other`]);
//! - a link in /var/log/containers into `podLogsDir` whose target is gone;
//! - a cgroup below the node's `kubepods`, with the processes in it;
//! - a sandbox with the labels of a Kubernetes pod in the node's own runtime: it is a pod that no
//!   source knows;
//! - a private mount below the root directory: the whole tree becomes shared, so that pods can have
//!   `mountPropagation`. The mounts here are shared from the start.

mod disk;
mod network;
mod process;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

use crate::ground::Ground;
use disk::{UserFile, UserMount};
use network::UserNetwork;
use process::UserProcess;

/// The file systems in a state directory, planted once `up` has made it.
pub const STATE_DIRECTORY_BYSTANDER: &str = "user-state-disk";

/// Name that every bystander begins with.
const USER: &str = "user-";

/// Whose kubelet runs, for what only ours leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    Ours,
    Other,
}

/// The directories of an agent that bystanders are planted in.
pub(crate) struct AgentPlaces<'a> {
    /// Its directory in the bed, with everything of it.
    pub(crate) directory: &'a Path,
    /// The name of its cgroup root, below the bed's cgroup.
    pub(crate) cgroup: &'a str,
    pub(crate) kubelet: Kubelet,
}

#[derive(Default)]
pub struct Bystanders(Mutex<Planted>);

#[derive(Default)]
struct Planted {
    mounts: Vec<UserMount>,
    files: Vec<UserFile>,
    processes: Vec<UserProcess>,
    network: Option<UserNetwork>,
    /// Directories that are done, because an agent may be started there again.
    places: BTreeSet<PathBuf>,
}

impl Bystanders {
    /// Plants those that every bed has.
    pub(crate) fn plant(ground: &Ground) -> Result<Self> {
        let mut planted = Planted {
            network: Some(UserNetwork::plant(ground.netns().clone())?),
            ..Planted::default()
        };
        let beside = UserProcess::start(ground, "user-group")?;
        planted.processes.push(beside);
        planted.mount_tree(&ground.path("user-disk"))?;
        for file in ["user-notes.txt", "cni/user-notes.txt", "cni-data/user-notes.txt"] {
            planted.file(&ground.path(file))?;
        }
        Ok(Self(Mutex::new(planted)))
    }

    /// Plants those inside the directories and beside the pods' cgroups of an agent.
    pub(crate) fn plant_around(&self, ground: &Ground, places: &AgentPlaces<'_>) -> Result<()> {
        let mut planted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let AgentPlaces { directory, cgroup, kubelet } = places;
        if !planted.places.insert(directory.to_path_buf()) {
            return Ok(());
        }
        planted.mount_tree(&directory.join("root/user-disk"))?;
        planted.mount_tree(&directory.join("root/pods/user-disk"))?;
        for file in [
            "user-notes.txt",
            "root/user-notes.txt",
            "containers/user-notes.log",
            "manifests/.user-notes",
            "certificates/user-notes.pem",
            "plugins/user-notes.txt",
        ] {
            planted.file(&directory.join(file))?;
        }
        if *kubelet == Kubelet::Ours {
            planted.file(&directory.join("pod-logs/user-notes.log"))?;
            planted.file(&directory.join("pod-logs/user-service/app.log"))?;
        }
        let inside = UserProcess::start(ground, &format!("{cgroup}/user-group"))?;
        planted.processes.push(inside);
        Ok(())
    }

    /// Plants those inside the state directory of `up`, once `up` has made it.
    pub fn plant_in_state_directory(&self, state: &Path) -> Result<()> {
        let mut planted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !planted.places.insert(state.to_path_buf()) {
            return Ok(());
        }
        planted.mount_tree(&state.join(STATE_DIRECTORY_BYSTANDER))?;
        planted.file(&state.join("user-notes.txt"))
    }

    /// Plants a shared file system with another one mounted in it, where a case wants it.
    pub fn plant_mounts(&self, point: &Path) -> Result<()> {
        let mut planted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        planted.mount_tree(point)
    }

    /// What was done to them, a line for each.
    pub fn harm(&self) -> Vec<String> {
        let planted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut harm: Vec<String> = planted.mounts.iter().filter_map(UserMount::harm).collect();
        harm.extend(planted.files.iter().filter_map(UserFile::harm));
        harm.extend(planted.processes.iter().flat_map(UserProcess::harm));
        harm.extend(planted.network.iter().flat_map(UserNetwork::harm));
        harm
    }

    /// Fails, with what was done to each, unless all are as they were planted.
    pub fn verify(&self) -> Result<()> {
        let harm = self.harm();
        if !harm.is_empty() {
            bail!("the node harmed what is not its own:\n  {}", harm.join("\n  "));
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

    /// Whether a path is one of a bystander: for cases that list what is in a directory.
    pub fn is_one(path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.trim_start_matches('.').starts_with(USER)
    }
}

impl Planted {
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
