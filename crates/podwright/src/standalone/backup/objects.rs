//! Snapshot of the API objects, which a running agent has open and writes.
//!
//! The agent copies them, as of one moment, and sends the copy through a socket that only root can
//! open: its length, then its bytes. A length of all ones is followed by an error message.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::OBJECTS;
use crate::standalone::agent::Agent;
use crate::standalone::{Layout, TEMPORARY};

const ERROR: u64 = u64::MAX;
const MAX_MESSAGE: u64 = 64 << 10;
/// Much more than the objects of one node.
const MAX_SIZE: u64 = 16 << 30;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes a copy of the objects to a new file.
pub type CopyObjects = Arc<dyn Fn(&Path) -> anyhow::Result<()> + Send + Sync>;

/// Serves snapshots until `stop` is cancelled, one at a time.
pub async fn serve(layout: Layout, copy: CopyObjects, stop: CancellationToken) {
    let path = layout.backup_socket();
    let serving = async {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        // The directory is private.
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            let sent = tokio::time::timeout(TIMEOUT, answer(&layout, &copy, &mut stream)).await;
            if let Err(error) = sent.map_err(anyhow::Error::from).flatten() {
                tracing::warn!(error = format!("{error:#}"), "send objects for a backup failed");
            }
        }
    };
    let outcome: Option<anyhow::Result<()>> = stop.run_until_cancelled(serving).await;
    if let Some(Err(error)) = outcome {
        let error = format!("{error:#}");
        tracing::warn!(error, "serve backups failed, podwright backup is not available");
    }
    // It may be that of the next agent's start, which creates it again.
    let _ = std::fs::remove_file(path);
}

async fn answer(
    layout: &Layout,
    copy: &CopyObjects,
    stream: &mut tokio::net::UnixStream,
) -> anyhow::Result<()> {
    let (state, copy) = (layout.state().to_owned(), copy.clone());
    let copied = tokio::task::spawn_blocking(move || copy_to_temporary(&state, &copy)).await?;
    match copied {
        Ok(file) => {
            stream.write_u64(file.metadata()?.len()).await?;
            tokio::io::copy(&mut tokio::fs::File::from_std(file), stream).await?;
        }
        Err(error) => {
            stream.write_u64(ERROR).await?;
            stream.write_all(format!("{error:#}").as_bytes()).await?;
        }
    }
    stream.shutdown().await?;
    Ok(())
}

fn copy_to_temporary(state: &Path, copy: &CopyObjects) -> anyhow::Result<File> {
    // Removed when it is dropped; the open file stays readable.
    let directory = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(state)?;
    let path = directory.path().join(OBJECTS);
    copy(&path)?;
    Ok(File::open(&path)?)
}

/// The objects of the node, from its agent or, without one, from its file. The caller holds the node
/// lock, so no agent starts.
pub(super) fn snapshot(layout: &Layout) -> anyhow::Result<File> {
    if Agent::of(layout).daemon().running()?.is_none() {
        let path = layout.api().join(OBJECTS);
        return File::open(&path).with_context(|| format!("cannot read {}", path.display()));
    }
    let socket = layout.backup_socket();
    let mut stream = UnixStream::connect(&socket).with_context(|| {
        format!(
            "the agent cannot be asked for its objects at {}. Fix: if it is of an older build, run \
             podwright up to replace it",
            socket.display()
        )
    })?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let failed = "cannot read the objects from the agent";
    let mut length = [0; 8];
    stream.read_exact(&mut length).context(failed)?;
    let length = u64::from_be_bytes(length);
    if length == ERROR {
        let mut message = String::new();
        stream.take(MAX_MESSAGE).read_to_string(&mut message).context(failed)?;
        bail!("{failed}: {message}");
    }
    if length > MAX_SIZE {
        bail!("{failed}: they are larger than {} GiB", MAX_SIZE >> 30);
    }
    let mut file = tempfile::tempfile_in(layout.state()).context("cannot create a file")?;
    let copied = std::io::copy(&mut stream.take(length), &mut file).context(failed)?;
    if copied != length {
        bail!("{failed}: it ended early");
    }
    file.flush()?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
