//! Arguments of the operations of `podwright up`: backups, images, installation.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::{Output, STATE_DIR};

#[derive(Clone, Debug, Args)]
#[command(after_help = BACKUP_HELP)]
pub struct BackupArgs {
    /// File to write, readable by root only; `-` is the standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Include the data of PersistentVolumeClaims
    #[arg(long)]
    pub volumes: bool,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

const BACKUP_HELP: &str = "\
The archive contains Secrets and the node's keys: whoever can read it controls the node.
The objects are those of one moment. Files of volumes are read one after the other; for a
database that is being written, stop its pod first. Images are not part of the archive.";

#[derive(Clone, Debug, Args)]
#[command(after_help = RESTORE_HELP)]
pub struct RestoreArgs {
    /// Archive to restore; `-` is the standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// State directory of the node, the same as that of the backup
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Replace the objects and manifests that the node has, and its volumes if the archive has some
    #[arg(long)]
    pub overwrite: bool,
}

const RESTORE_HELP: &str = "\
The node must be down. Nothing is changed until the whole archive was checked. podwright up
then starts the pods of the archive.";

#[derive(Clone, Debug, Args)]
pub struct ImagesArgs {
    /// State directory of `podwright up`
    #[arg(long, global = true, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    #[command(subcommand)]
    pub command: ImagesCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ImagesCommand {
    /// Load images from OCI or Docker archives, also compressed with gzip or zstd
    Load {
        /// Archives written by `docker save` or `skopeo copy`; `-` is the standard input
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        archives: Vec<PathBuf>,
    },
    /// Pull images from their registries, without credentials
    Pull {
        /// Image names; short ones are those of Docker Hub
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Copy images from Docker or Podman on this machine
    Import {
        /// Program that has the images
        #[arg(long, value_name = "PROGRAM")]
        from: ImageProgram,
        /// Image names as that program prints them
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// List the images on this node
    List {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: Output,
    },
    /// Remove images that no container uses
    Remove {
        /// Image names as printed by `podwright images list`
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove all images that no pod uses, except those that were loaded or imported
    Prune {
        /// Also remove images that were loaded or imported
        #[arg(long)]
        loaded: bool,
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

/// A program that images are imported from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImageProgram {
    Docker,
    Podman,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = INSTALL_HELP)]
pub struct InstallArgs {
    /// Directory for bin and share
    #[arg(long, value_name = "DIR", default_value = "/usr/local", value_hint = ValueHint::DirPath)]
    pub prefix: PathBuf,
    /// Install below this directory instead of /, and start nothing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
    /// State directory of the node that starts at boot
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Start the node at boot only, not now
    #[arg(long)]
    pub no_start: bool,
    /// Only print what would change
    #[arg(long)]
    pub dry_run: bool,
}

const INSTALL_HELP: &str = "\
Files of packages and files that podwright did not install are never replaced. To upgrade,
run install of the new build: the agent restarts, pods keep running.";

#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// Directory given to install
    #[arg(long, value_name = "DIR", default_value = "/usr/local", value_hint = ValueHint::DirPath)]
    pub prefix: PathBuf,
    /// Directory given to install
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
    /// Only print what would be removed
    #[arg(long)]
    pub dry_run: bool,
}
