//! Packet filter chains that other components of a cluster expect from a node.
//!
//! They are added once, and again when a canary is missing, because another program has flushed a
//! table. Nothing is ever deleted.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use podwright_core::packet_filter::{Family, Part, PartSet, joined_node};
use podwright_host::trusted_path;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// How often the canaries are checked.
const INTERVAL: Duration = Duration::from_secs(60);
/// Timeout of one call, longer than it waits for the lock of the packet filter.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Exit code of a program for a chain or rule that does not exist, among other failures.
const ABSENT: i32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: std::io::Error },
    #[error("{program} did not end within {CALL_TIMEOUT:?}")]
    Timeout { program: String },
    #[error("{program} {arguments}: {output}")]
    Failed { program: String, arguments: String, output: String },
}

/// The program for one family.
#[derive(Clone, Debug)]
pub struct PacketFilter {
    family: Family,
    program: PathBuf,
}

impl PacketFilter {
    /// The programs found in `directories`. The environment has no influence: they run as root.
    pub fn find(directories: &[PathBuf]) -> Vec<Self> {
        let find = |family: Family| match trusted_path::find_program(family.program(), directories)
        {
            Ok(program) => Some(Self { family, program: program? }),
            Err(error) => {
                let program = family.program();
                tracing::warn!(%error, program, "program is not used: others can change it");
                None
            }
        };
        Family::ALL.into_iter().filter_map(find).collect()
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Adds the missing parts if a canary is missing; true if it was.
    pub async fn ensure(&self, set: &PartSet) -> Result<bool, CallError> {
        let mut complete = true;
        for canary in &set.canaries {
            complete = complete && self.exists(canary).await?;
        }
        if complete {
            return Ok(false);
        }
        for part in &set.parts {
            if !self.exists(part).await? {
                self.add(part).await?;
            }
        }
        Ok(true)
    }

    async fn exists(&self, part: &Part) -> Result<bool, CallError> {
        let arguments = part.check();
        let output = self.call(&arguments).await?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(ABSENT) => Ok(false),
            Some(_) | None => Err(self.failed(&arguments, &output)),
        }
    }

    async fn add(&self, part: &Part) -> Result<(), CallError> {
        let arguments = part.add();
        let output = self.call(&arguments).await?;
        match output.status.success() {
            true => Ok(()),
            false => Err(self.failed(&arguments, &output)),
        }
    }

    async fn call(&self, arguments: &[String]) -> Result<std::process::Output, CallError> {
        let program = || self.program.display().to_string();
        let mut command = Command::new(&self.program);
        // Extensions are loaded from the compiled-in directory, not from one of the environment.
        command.args(arguments).env_clear().stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(CALL_TIMEOUT, command.output()).await {
            Ok(output) => output.map_err(|source| CallError::Run { program: program(), source }),
            Err(_) => Err(CallError::Timeout { program: program() }),
        }
    }

    fn failed(&self, arguments: &[String], output: &std::process::Output) -> CallError {
        let text = String::from_utf8_lossy(&output.stderr);
        CallError::Failed {
            program: self.program.display().to_string(),
            arguments: arguments.join(" "),
            output: text.lines().next().unwrap_or("no message").to_owned(),
        }
    }
}

/// Keeps the chains of both families until stopped.
pub async fn maintain(directories: Vec<PathBuf>, stop: CancellationToken) {
    let filters = PacketFilter::find(&directories);
    if filters.is_empty() {
        tracing::warn!(
            searched = ?directories.iter().map(|path| Path::display(path).to_string()).collect::<Vec<_>>(),
            "iptables not found: KUBE-IPTABLES-HINT and KUBE-FIREWALL are not created, and packets \
             from other machines to 127.0.0.0/8 are not dropped. Fix: install iptables, or set \
             makeIPTablesUtilChains to false"
        );
        return;
    }
    for family in Family::ALL {
        if filters.iter().all(|filter| filter.family != family) {
            let program = family.program();
            tracing::info!(program, "program not found: no packet filter chains of its family");
        }
    }
    let work = filters.into_iter().map(maintain_family);
    stop.run_until_cancelled(futures::future::join_all(work)).await;
}

async fn maintain_family(filter: PacketFilter) {
    let program = filter.family.program();
    let set = joined_node(filter.family);
    let mut last_problem = None;
    let mut created = false;
    loop {
        match filter.ensure(&set).await {
            Ok(added) => {
                if added && created {
                    tracing::info!(program, "packet filter was flushed, chains added again");
                }
                (created, last_problem) = (true, None);
            }
            Err(error) => {
                let problem = error.to_string();
                if last_problem.as_ref() != Some(&problem) {
                    tracing::warn!(
                        program,
                        error = problem,
                        "create packet filter chains failed, retrying every minute"
                    );
                    last_problem = Some(problem);
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
