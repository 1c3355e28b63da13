//! `podwright backup` and `podwright restore`.

use std::fs::File;
use std::io::{IsTerminal as _, Read, Write};
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::cli::{BackupArgs, RestoreArgs};
use crate::standalone::Layout;
use crate::standalone::backup::{self, Existing, Summary, VolumeData};
use crate::standalone::lock::NodeLock;

/// Progress goes to stderr: the archive may go to stdout.
fn say(text: &str) {
    // A closed stderr is no error.
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub fn backup(arguments: &BackupArgs) -> anyhow::Result<()> {
    super::up::require_root("podwright backup")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let volumes = match arguments.volumes {
        true => VolumeData::Included,
        false => VolumeData::LeftOut,
    };
    let lock = NodeLock::take(&layout, "backup", &say)?;
    let Summary { description, skipped } = if arguments.file == Path::new("-") {
        let output = std::io::stdout();
        if output.is_terminal() {
            bail!("the standard output is a terminal. Fix: podwright backup FILE");
        }
        backup::write(&layout, &lock, volumes, output.lock())?
    } else {
        write_file(&layout, &lock, volumes, arguments)?
    };
    drop(lock);
    if skipped > 0 {
        say(&format!("left out: {skipped} sockets, pipes and devices"));
    }
    let volumes = if description.volumes { "with volumes" } else { "without volumes" };
    say(&format!("backup of {} written, {volumes}", layout.state().display()));
    Ok(())
}

fn write_file(
    layout: &Layout,
    lock: &NodeLock,
    volumes: VolumeData,
    arguments: &BackupArgs,
) -> anyhow::Result<Summary> {
    let path = std::path::absolute(&arguments.file)?;
    let shown = path.display();
    let exists = std::fs::symlink_metadata(&path).is_ok();
    if exists && !arguments.force {
        bail!("{shown} exists. Fix: give another file, or replace it with --force");
    }
    let above = path.parent().unwrap_or(Path::new("/"));
    let state = std::fs::canonicalize(layout.state()).unwrap_or_else(|_| layout.state().into());
    if std::fs::canonicalize(above).is_ok_and(|above| above.starts_with(&state)) {
        bail!(
            "{shown} is in the state directory, which it would be a part of. Fix: write it elsewhere"
        );
    }
    // With mode 0600. Replaced when complete.
    let file = tempfile::NamedTempFile::new_in(above)
        .with_context(|| format!("cannot write to {}", above.display()))?;
    let summary = backup::write(layout, lock, volumes, file.as_file())?;
    file.as_file().sync_all().with_context(|| format!("cannot write {shown}"))?;
    let kept = match arguments.force {
        true => file.persist(&path),
        false => file.persist_noclobber(&path),
    };
    kept.map_err(|error| error.error).with_context(|| format!("cannot write {shown}"))?;
    Ok(summary)
}

pub fn restore(arguments: &RestoreArgs) -> anyhow::Result<()> {
    super::up::require_root("podwright restore")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let existing = if arguments.overwrite { Existing::Replace } else { Existing::Refuse };
    let archive: Box<dyn Read> = if arguments.file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let shown = arguments.file.display();
        Box::new(File::open(&arguments.file).with_context(|| format!("cannot read {shown}"))?)
    };
    let mut lock = NodeLock::take(&layout, "restore", &say)?;
    let Summary { description, .. } = backup::restore(&layout, &mut lock, archive, existing)?;
    drop(lock);
    say(&format!("restored the node of {} to {}", description.created, layout.state().display()));
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if hostname != description.hostname {
        say(&format!(
            "the backup is of the machine {}, this one is {hostname}: pods that are bound to it stay \
             Pending until they are created again, or until this machine has that name",
            description.hostname
        ));
    }
    let mut command = format!("podwright up --state-dir {}", layout.state().display());
    if let Some(options) = description.up_options {
        if let Some(runtime) = options.runtime {
            command.push_str(&format!(" --container-runtime-endpoint {runtime}"));
        }
        if let Some(port) = options.api_port {
            command.push_str(&format!(" --api-port {port}"));
        }
        if options.no_pod_api {
            command.push_str(" --no-pod-api");
        }
    }
    say(&format!("start it with: {}", crate::printable::printable(&command)));
    Ok(())
}
