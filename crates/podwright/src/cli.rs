//! Command line: commands and their arguments.
//!
//! Clap parses everything but the kubelet's flags, which have upstream's syntax and are parsed by
//! their own table. Both are one clap command for help, completions and man pages, so that these
//! always match the flags that exist.

mod kubelet;
mod operations;
mod reference;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use podwright_host::process::InheritedLimits;

pub use operations::{
    BackupArgs, ImageProgram, ImagesArgs, ImagesCommand, InstallArgs, RestoreArgs, UninstallArgs,
};
pub use reference::{completion, man_pages};

use crate::commands;
use crate::config::duration::GoDuration;
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::problem::Invalid;
use crate::config::{self, Preset};
use crate::logging;
use crate::standalone::daemon::become_program;
use crate::standalone::kubeconfig::merge::SameName;
use crate::standalone::teardown::StopMode;

/// Default state directory of `podwright up`.
pub const STATE_DIR: &str = "/var/lib/podwright";

const EXAMPLES: &str = "\
Examples:
  podwright doctor                            check what this machine lacks to run pods
  podwright up                                run a node on this machine, no control plane
  podwright why NAMESPACE/NAME                show what a pod is waiting for, and the fix
  podwright top                               watch the node, its pods, events and logs
  podwright kubelet --kubeconfig=FILE         join a cluster
  podwright kubelet --pod-manifest-path=DIR   run the static pods in a directory

When invoked as `kubelet`, it runs `podwright kubelet`.";

/// A Kubernetes node agent, joined to a cluster or standalone on one machine
#[derive(Debug, Parser)]
#[command(name = "podwright", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a standalone node on this machine, with its own container runtime
    Up(UpArgs),
    /// Stop the node of `podwright up` and keep its data
    Down(DownArgs),
    /// Stop the node of `podwright up` and delete its data
    Reset(ResetArgs),
    /// Write the node's objects, keys and manifests to an archive, while it runs
    Backup(BackupArgs),
    /// Restore a node from an archive of `podwright backup`
    Restore(RestoreArgs),
    /// Show a summary of the node and its pods
    Status(StatusArgs),
    /// Show a live view of the node, its pods, events and logs
    Top(TopArgs),
    /// List, load or remove the node's images
    Images(ImagesArgs),
    /// Print or merge a kubeconfig of the node of `podwright up`, or revoke a user's permissions
    Kubeconfig(KubeconfigArgs),
    /// Merge a kubeconfig from the standard input (part of kubeconfig)
    #[command(hide = true)]
    KubeconfigMerge(KubeconfigMergeArgs),
    /// Explain what a pod or the node is waiting for, since when, what was tried, and the fix
    Why(WhyArgs),
    /// Replay a recorded decision and print the result and its reason
    Plan {
        /// Case file written by `podwright why --record`
        #[arg(value_name = "CASE.json", value_hint = ValueHint::FilePath)]
        case: PathBuf,
    },
    /// Check whether this machine can run pods, and suggest fixes
    Doctor(DoctorArgs),
    /// Install this program, completions and man pages, and start the node at boot
    Install(InstallArgs),
    /// Remove what `podwright install` installed; pods keep running
    Uninstall(UninstallArgs),
    /// Print versions
    Version(VersionArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  podwright completion bash > /etc/bash_completion.d/podwright"
    )]
    Completion {
        /// Shell to generate the script for
        shell: Shell,
    },
    /// Write the man pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Write a pid file and execute another program (part of up)
    #[command(hide = true)]
    Daemon(DaemonArgs),
}

/// Used by `podwright up`, so that every process it starts has a pid file.
#[derive(Clone, Debug, Args)]
pub struct DaemonArgs {
    /// Pid file to write
    #[arg(long, value_name = "FILE")]
    pub pid_file: PathBuf,
    /// Pass the node lock to the program as its standard input
    #[arg(long)]
    pub keep_lock: bool,
    /// Limits of the program: OOM_SCORE_ADJ:SOFT:HARD, with the limits of open files
    #[arg(long, value_name = "LIMITS", allow_hyphen_values = true)]
    pub limits: Option<InheritedLimits>,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<PathBuf>,
}

/// Used by packagers, through `cargo xtask papers`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Directory for the man pages
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Directory for all persistent state: new, empty, or of an earlier `up`, whose flags apply
    /// until `podwright down`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Use this runtime instead of starting a private containerd
    #[arg(long, value_name = "ENDPOINT", value_hint = ValueHint::FilePath)]
    pub container_runtime_endpoint: Option<String>,
    /// Network of the pods (default: a network that is unused on this machine)
    #[arg(long, value_name = "CIDR")]
    pub pod_cidr: Option<String>,
    /// Port of the API server (default: 6443 or, if that is in use, a free one)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub api_port: Option<u16>,
    /// Serve the API on loopback only, not to pods; `=false` serves it to pods again
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    pub no_pod_api: Option<bool>,
    /// Run in the foreground, for service managers
    #[arg(long)]
    pub foreground: bool,
    /// Log file that receives the output; rotated when it grows too large
    #[arg(long, value_name = "FILE", hide = true, requires = "foreground")]
    pub log_file: Option<PathBuf>,
    /// Stop running pods and start none (part of down)
    #[arg(long, hide = true, requires = "foreground")]
    pub stop_pods: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = DOWN_HELP)]
pub struct DownArgs {
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub stop_mode: StopModeArgs,
}

const DOWN_HELP: &str = "\
Pods stop as with kubectl delete: preStop hooks run, each pod's
terminationGracePeriodSeconds applies, sidecars stop last. Their API objects are kept, and
the next podwright up starts them again.";

/// How much time pods have to stop.
#[derive(Clone, Copy, Debug, Args)]
pub struct StopModeArgs {
    /// Kill pods that have not stopped after this time, such as 30s or 2m (default: the grace
    /// period of each pod)
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,
    /// Kill pods after 1 s, without preStop hooks or grace period
    #[arg(long, conflicts_with = "timeout")]
    pub now: bool,
}

impl StopModeArgs {
    pub fn read(self) -> StopMode {
        if self.now { StopMode::Now } else { StopMode::Grace(self.timeout) }
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let parsed: GoDuration = text.parse().map_err(|_| "not a duration such as 30s or 2m")?;
    match parsed.to_std() {
        duration if duration.is_zero() => {
            Err("must be positive; use --now to stop without a grace period".into())
        }
        duration => Ok(duration),
    }
}

#[derive(Clone, Debug, Args)]
#[command(after_help = RESET_HELP)]
pub struct ResetArgs {
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub stop_mode: StopModeArgs,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

const RESET_HELP: &str = "\
Files that podwright did not create and everything on mounts are kept and listed.
Exits with 1 if the confirmation is not yes.";

#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = TOP_HELP)]
pub struct TopArgs {
    /// Root directory of the agent (default: that of the kubelet or of `podwright up`)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root_dir: Option<PathBuf>,
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", conflicts_with = "root_dir", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
}

const TOP_HELP: &str = "\
Keys are on the screen; ? lists all. It reads from the agent, on a standalone node and on one
that has joined a cluster. NO_COLOR turns colours off.";

#[derive(Clone, Debug, Args)]
pub struct WhyArgs {
    /// NAME, NAMESPACE/NAME or UID; for a static pod also the name in its manifest, for a manifest
    /// that is not valid its file
    #[arg(required_unless_present = "node")]
    pub pod: Option<String>,
    /// Explain the node instead: its conditions, and the pods that are stuck
    #[arg(long, conflicts_with_all = ["pod", "record"])]
    pub node: bool,
    /// Root directory of the agent (default: that of the kubelet or of `podwright up`)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root_dir: Option<PathBuf>,
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", conflicts_with = "root_dir", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
    /// Also write the inputs of the decision for `podwright plan`, with secrets masked
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = KUBECONFIG_HELP)]
pub struct KubeconfigArgs {
    /// State directory of `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Name of the user; without it `--merge` merges the kubeconfig of the node's owner
    #[arg(long, value_name = "NAME", required_unless_present = "merge")]
    pub user: Option<String>,
    /// Merge into the kubeconfig of the user who runs the command (`KUBECONFIG` or
    /// ~/.kube/config), of which a copy is kept
    #[arg(long)]
    pub merge: bool,
    /// With `--merge`: replace entries of the same name that belong to another cluster
    #[arg(long, requires = "merge")]
    pub replace: bool,
    /// Role that the user gets
    #[arg(long, value_name = "ROLE", default_value = "view")]
    pub role: UserRole,
    /// Namespace in which the user gets the role
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Grant the role in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Lifetime of the certificate, from 10m to 720h
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_lifetime)]
    pub expires: Duration,
    /// Remove the user from all bindings instead
    #[arg(long, conflicts_with_all = ["role", "namespace", "all_namespaces", "expires", "merge"])]
    pub revoke: bool,
}

impl KubeconfigArgs {
    pub fn same_name(&self) -> SameName {
        if self.replace { SameName::Replace } else { SameName::Refuse }
    }
}

/// Used by `podwright kubeconfig --merge` under sudo.
#[derive(Clone, Debug, Args)]
pub struct KubeconfigMergeArgs {
    /// Replace entries of the same name that belong to another cluster
    #[arg(long)]
    pub replace: bool,
}

const KUBECONFIG_HELP: &str = "\
Examples:
  podwright kubeconfig --user bob --role edit --expires 24h > bob.kubeconfig
  sudo podwright kubeconfig --merge && kubectl --context podwright get pods

The roles are those of Kubernetes: view reads all but Secrets, edit also writes and runs
commands in pods, admin also grants roles, each in its namespace; cluster-admin may do
everything. A user that may create pods in a namespace with the Pod Security level privileged
is root on this machine. To revoke all certificates, that of podwright-admin too: podwright down,
delete api/client-ca.crt and api/client-ca.key in the state directory, podwright up.";

/// A role for `podwright kubeconfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UserRole {
    View,
    Edit,
    Admin,
    ClusterAdmin,
}

impl UserRole {
    pub const fn cluster_role(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Edit => "edit",
            Self::Admin => "admin",
            Self::ClusterAdmin => "cluster-admin",
        }
    }
}

fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let parsed: GoDuration = text.parse().map_err(|_| "not a duration such as 12h")?;
    let duration = parsed.to_std();
    let (least, most) = (Duration::from_secs(600), Duration::from_secs(720 * 3600));
    if duration < least || duration > most {
        return Err("must be from 10m to 720h".into());
    }
    Ok(duration)
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Exits with 0 if no check fails, with 1 otherwise.")]
pub struct DoctorArgs {
    /// State directory of `podwright up`; a node in it is checked as well
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Runtime endpoint that must respond (default: the usual endpoints)
    #[arg(long, value_name = "ENDPOINT", value_hint = ValueHint::FilePath)]
    pub container_runtime_endpoint: Option<String>,
    /// Kubelet configuration; its ports and directories are checked
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
pub struct VersionArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// The whole command line as a clap command, including the kubelet's flags.
pub fn command() -> clap::Command {
    Cli::command().subcommand(kubelet::command().display_order(0))
}

/// Runs the program; the first argument is its name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = match Invocation::read(arguments) {
        Invocation::Kubelet(flags) => run_kubelet(flags),
        Invocation::Podwright(arguments) => run_command(arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed too, the exit code still reports the error.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What to run, depending on the program name and the first argument.
enum Invocation {
    /// The kubelet, with its flags.
    Kubelet(Vec<OsString>),
    /// Any other command, with all arguments.
    Podwright(Vec<OsString>),
}

impl Invocation {
    fn read(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        match arguments.as_slice() {
            [name, flags @ ..] if Path::new(name).file_name() == Some(OsStr::new("kubelet")) => {
                Self::Kubelet(flags.to_vec())
            }
            [_, command, flags @ ..] if command == "kubelet" => Self::Kubelet(flags.to_vec()),
            _ => Self::Podwright(arguments),
        }
    }
}

fn run_kubelet(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let flags = Flags::parse(arguments);
    if flags.help || flags.version {
        // The configuration is not resolved, so flag errors are reported here.
        Invalid::unless_empty(flags.problems().to_vec())?;
    }
    if flags.help {
        kubelet::print_help()?;
        return Ok(ExitCode::SUCCESS);
    }
    if flags.version {
        writeln!(io::stdout(), "Kubernetes {}", commands::version::KUBELET)?;
        return Ok(ExitCode::SUCCESS);
    }
    let host = Host::observe().context("cannot read machine information")?;
    let settings = config::resolve(&flags, &Preset::kubelet(), &host)?;
    logging::start(&settings.configuration.logging).context("cannot start logging")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    commands::kubelet::run(&settings)?;
    Ok(ExitCode::SUCCESS)
}

fn run_command(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let matches = command().try_get_matches_from(arguments);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Clap's exit code: 0 for help and version, 2 for an invalid command line.
        Err(error) => {
            error.print()?;
            return Ok(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from));
        }
    };
    match cli.command {
        Command::Up(arguments) => commands::up::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Down(arguments) => commands::down::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Reset(arguments) => commands::reset::run(&arguments),
        Command::Backup(arguments) => {
            commands::backup::backup(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::Restore(arguments) => {
            commands::backup::restore(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::Status(arguments) => commands::status::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Top(arguments) => commands::top::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Images(arguments) => commands::images::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Kubeconfig(arguments) => {
            commands::kubeconfig::run(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::KubeconfigMerge(arguments) => {
            commands::kubeconfig::run_merge(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::Why(arguments) => commands::why::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Plan { case } => commands::plan::run(&case).map(|()| ExitCode::SUCCESS),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Install(arguments) => {
            commands::install::install(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::Uninstall(arguments) => {
            commands::install::uninstall(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::Version(arguments) => {
            commands::version::print(arguments.output, &mut io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Completion { shell } => {
            completion(shell, &mut io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(arguments) => {
            man_pages(&arguments.folder)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Daemon(arguments) => match become_program(&arguments)? {},
    }
}

/// Whether the reader of our output is gone, as with `podwright doctor | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn invoked_as_kubelet_it_runs_the_kubelet() {
        let kubelet = |line: &str| {
            let read = Invocation::read(line.split(' ').map(OsString::from));
            match read {
                Invocation::Kubelet(flags) => Some(flags),
                Invocation::Podwright(_) => None,
            }
        };
        for (line, want) in [
            ("kubelet --v=2", Some(vec!["--v=2"])),
            ("/usr/bin/kubelet", Some(vec![])),
            ("podwright kubelet --v=2", Some(vec!["--v=2"])),
            ("podwright up", None),
            ("podwright up kubelet", None),
            ("podwright", None),
            ("mykubelet --v=2", None),
        ] {
            let want = want.map(|flags| flags.into_iter().map(OsString::from).collect());
            assert_eq!(kubelet(line), want, "{line}");
        }
    }

    #[test]
    fn timeout_of_down_is_a_positive_duration() {
        for (text, want) in [
            ("2s", Some(Duration::from_secs(2))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("0s", None),
            ("-5s", None),
            ("soon", None),
        ] {
            assert_eq!(parse_timeout(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn every_command_has_a_description() {
        for command in command().get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() > 10 && !about.ends_with('.'), "{}: {about}", command.get_name());
        }
    }
}
