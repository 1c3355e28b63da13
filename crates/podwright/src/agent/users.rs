//! User id range for pods with user namespaces.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use podwright_core::users::{self, UserRange};
use podwright_host::trusted_path;
use tokio::process::Command;

use crate::config::kubelet::KubeletConfiguration;

/// The user whose subordinate ids are for pods.
const USER: &str = "kubelet";
/// `getsubids` may ask a remote directory service.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The range that `getsubids` reports for `kubelet`; the range above the host's users if there is
/// no such user or no such program. If there are both, an answer that cannot be used is an error:
/// another range could contain ids that belong to other users.
pub(super) async fn range(
    configuration: &KubeletConfiguration,
    max_pods: usize,
) -> anyhow::Result<UserRange> {
    let wanted = configuration.user_namespaces.as_ref().and_then(|users| users.ids_per_pod);
    let ids_per_pod = wanted.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(users::BLOCK);
    let user = nix::unistd::User::from_name(USER)
        .with_context(|| format!("user namespaces: look up the user {USER} failed"))?;
    let program = match user {
        Some(_) => find(&trusted_path::PROGRAM_DIRECTORIES.map(PathBuf::from))?,
        None => None,
    };
    match program {
        Some(program) => reserved(&program, ids_per_pod).await,
        None => Ok(UserRange::for_pods(u32::try_from(max_pods).unwrap_or(u32::MAX), ids_per_pod)),
    }
}

fn find(directories: &[PathBuf]) -> anyhow::Result<Option<PathBuf>> {
    trusted_path::find_program("getsubids", directories)
        .context("user namespaces: getsubids is not used")
}

/// The range of subordinate ids, the same for users and groups.
async fn reserved(program: &Path, ids_per_pod: u32) -> anyhow::Result<UserRange> {
    let (uids, gids) = (print(program, &[USER]).await?, print(program, &["-g", USER]).await?);
    ensure!(
        uids == gids,
        "user namespaces: subordinate users {:?} and groups {:?} of {USER} differ. Fix: reserve the \
         same ids in /etc/subuid and /etc/subgid",
        uids.trim(),
        gids.trim()
    );
    UserRange::from_subids(&uids, ids_per_pod).with_context(|| {
        format!(
            "user namespaces: subordinate ids {:?} of {USER} cannot be used. Fix: reserve one range \
             that begins at a multiple of {} and has at least {ids_per_pod} ids",
            uids.trim(),
            users::BLOCK
        )
    })
}

async fn print(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let call = format!("{} {}", program.display(), arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await;
    let output = output
        .with_context(|| format!("user namespaces: {call} did not end within {TIMEOUT:?}"))?
        .with_context(|| format!("user namespaces: run {call} failed"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "user namespaces: {call} failed: {}. Fix: reserve ids for the user {USER} in /etc/subuid and \
         /etc/subgid, or remove the user",
        error.trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("user namespaces: read {call}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `reserved` with a program that runs this script.
    async fn with(script: &str) -> Result<UserRange, String> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("getsubids");
        // Written by another process: a child that a concurrent test forks could inherit the open
        // file, and a file that is open for writing cannot be executed.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", write, "sh", script]).arg(&program);
        assert!(shell.status().await.unwrap().success());
        assert_eq!(
            find(&[directory.path().join("absent"), directory.path().into()]).unwrap(),
            Some(program.clone())
        );
        reserved(&program, users::BLOCK).await.map_err(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn range_is_the_one_that_the_administrator_reserved() {
        let range = with("echo '0: kubelet 131072 7208960'").await.unwrap();
        assert_eq!((range.first, range.blocks), (131_072, 110));
    }

    #[tokio::test]
    async fn answer_that_cannot_be_used_is_an_error_and_not_the_default_range() {
        for (script, error) in [
            (
                "echo 'Error fetching ranges' >&2; exit 1",
                "failed: Error fetching ranges. Fix: reserve",
            ),
            ("echo \"0: kubelet 65536 655360$#\"", "differ"),
            ("echo '0: kubelet 65536 10'", "cannot be used"),
            ("echo '0: kubelet 70000 655360'", "cannot be used"),
            ("printf '0: kubelet 65536 65536\\n1: kubelet 655360 65536\\n'", "cannot be used"),
            ("true", "cannot be used"),
            ("printf '\\377'", "user namespaces: read"),
        ] {
            let found = with(script).await.unwrap_err();
            assert!(found.contains(error), "{script}: {found}");
        }
    }
}
