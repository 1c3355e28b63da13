//! The command line: which command, with what arguments.
//!
//! Clap reads everything but the kubelet's flags, which have upstream's syntax and are read from
//! their own table. Both are one clap command for the help text, completions and man pages, so that
//! what is documented is what exists.

mod kubelet;
mod reference;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

pub use reference::{completion, man_pages};

use crate::commands;
use crate::config::duration::GoDuration;
use crate::config::flags::Flags;
use crate::config::host::Host;
use crate::config::problem::Invalid;
use crate::config::{self, Preset};
use crate::logging;
use crate::standalone::daemon::become_program;
use crate::standalone::teardown::Haste;

/// Where `podwright up` keeps what must outlive it.
pub const STATE_DIR: &str = "/var/lib/podwright";

const EXAMPLES: &str = "\
Examples:
  podwright doctor                            what this machine still lacks
  podwright up                                a node on this machine, no control plane
  podwright why NAMESPACE/NAME                what a pod waits for, and the way out
  podwright kubelet --kubeconfig=FILE         join a cluster
  podwright kubelet --pod-manifest-path=DIR   run the static pods in a folder

Started under the name `kubelet`, it is `podwright kubelet`.";

/// A Kubernetes node agent, joined to a cluster or alone on one machine
#[derive(Debug, Parser)]
#[command(name = "podwright", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node on this machine alone, with a container runtime of its own
    Up(UpArgs),
    /// Stop what `podwright up` started, and keep its data
    Down(DownArgs),
    /// Stop what `podwright up` started, and delete its data
    Reset(ResetArgs),
    /// Show the node's pods at a glance
    Status(StatusArgs),
    /// List the node's images, or load some without a registry
    Images(ImagesArgs),
    /// Say what a pod waits for, since when, what was tried, and the way out
    Why(WhyArgs),
    /// Replay a recorded decision and print what is decided, and why
    Plan {
        /// A case, as `podwright why --record` writes it
        #[arg(value_name = "CASE.json", value_hint = ValueHint::FilePath)]
        case: PathBuf,
    },
    /// Check whether this machine can run pods, and say what to do if not
    Doctor(DoctorArgs),
    /// Print versions
    Version(VersionArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  podwright completion bash > /etc/bash_completion.d/podwright"
    )]
    Completion {
        /// The shell to complete for
        shell: Shell,
    },
    /// Write the manual as man pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Write a pid file and become another program (part of up)
    #[command(hide = true)]
    Daemon(DaemonArgs),
}

/// For `podwright up`, which must not start what the next command could not find.
#[derive(Clone, Debug, Args)]
pub struct DaemonArgs {
    /// File for the identity of the process
    #[arg(long, value_name = "FILE")]
    pub pid_file: PathBuf,
    /// Leave the lock of the node to the program, as its standard input
    #[arg(long)]
    pub keep_lock: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<PathBuf>,
}

/// For packagers, through `cargo xtask papers`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Directory for everything that must survive a restart: a new or empty one, or that of an
    /// earlier `up`, whose flags hold until `podwright down`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Use this runtime instead of starting a private containerd
    #[arg(long, value_name = "ENDPOINT", value_hint = ValueHint::FilePath)]
    pub container_runtime_endpoint: Option<String>,
    /// Network of the pods; without it, one that nothing on this machine uses
    #[arg(long, value_name = "CIDR")]
    pub pod_cidr: Option<String>,
    /// Port of the API server; without it, 6443 or, if that is taken, a free one
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub api_port: Option<u16>,
    /// Keep the API server from pods: serve it on loopback only; `=false` lets them in again
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    pub no_pod_api: Option<bool>,
    /// Stay in the foreground, as a service manager wants it
    #[arg(long)]
    pub foreground: bool,
    /// Where the output goes; the file is set aside when it has grown
    #[arg(long, value_name = "FILE", hide = true, requires = "foreground")]
    pub log_file: Option<PathBuf>,
    /// Stop the pods that run and start none, for `podwright down`
    #[arg(long, hide = true, requires = "foreground")]
    pub stop_pods: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = DOWN_HELP)]
pub struct DownArgs {
    /// Directory that was given to `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub haste: HasteArgs,
}

const DOWN_HELP: &str = "\
Pods stop as with kubectl delete: preStop hooks run, each pod has its own
terminationGracePeriodSeconds, sidecars stop last. Their objects are kept, and the
next podwright up starts them again.";

/// How much time pods get to stop.
#[derive(Clone, Copy, Debug, Args)]
pub struct HasteArgs {
    /// Kill pods that have not stopped after this time, such as 30s or 2m; without it each pod has
    /// its own grace period
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,
    /// Kill pods after a moment: no preStop hooks, no grace period
    #[arg(long, conflicts_with = "timeout")]
    pub now: bool,
}

impl HasteArgs {
    pub fn read(self) -> Haste {
        if self.now { Haste::Now } else { Haste::Grace(self.timeout) }
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let parsed: GoDuration = text.parse().map_err(|_| "not a duration such as 30s or 2m")?;
    match parsed.to_std() {
        duration if duration.is_zero() => Err("it must be positive; for no time use --now".into()),
        duration => Ok(duration),
    }
}

#[derive(Clone, Debug, Args)]
#[command(after_help = RESET_HELP)]
pub struct ResetArgs {
    /// Directory that was given to `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub haste: HasteArgs,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

const RESET_HELP: &str = "\
Files that podwright did not make and everything on mounts stay; they are named.
Exits with 1 if the question is not answered with yes.";

#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Folder that was given to `podwright up`
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
pub struct WhyArgs {
    /// NAME, NAMESPACE/NAME or UID; a static pod also by the name in its manifest
    pub pod: String,
    /// Root folder of the agent; without it, that of the kubelet or of `podwright up`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root_dir: Option<PathBuf>,
    /// Folder that was given to `podwright up`
    #[arg(long, value_name = "DIR", conflicts_with = "root_dir", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
    /// Also write the inputs of the decision, secrets masked, for `podwright plan`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
pub struct ImagesArgs {
    /// Folder that was given to `podwright up`
    #[arg(long, global = true, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    #[command(subcommand)]
    pub command: ImagesCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ImagesCommand {
    /// Load images from OCI or Docker archives
    Load {
        /// Archives, as `docker save` or `skopeo copy` write them
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        archives: Vec<PathBuf>,
    },
    /// List the images that are here
    List,
    /// Remove images that no container uses
    Remove {
        /// Their names, as `podwright images list` prints them
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Exits with 0 if nothing fails, with 1 otherwise.")]
pub struct DoctorArgs {
    /// Folder that was given to `podwright up`, if a node runs there
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Runtime that must be there; without it, the usual one is looked for
    #[arg(long, value_name = "ENDPOINT", value_hint = ValueHint::FilePath)]
    pub container_runtime_endpoint: Option<String>,
    /// Configuration of the node to be; its ports and folders are checked
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// How to print the findings
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
pub struct VersionArgs {
    /// How to print the versions
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// The whole command line as clap knows it, the kubelet's flags included.
pub fn command() -> clap::Command {
    Cli::command().subcommand(kubelet::command().display_order(0))
}

/// Runs the program with its arguments, the first being its name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = match Invocation::read(arguments) {
        Invocation::Kubelet(flags) => run_kubelet(flags),
        Invocation::Podwright(arguments) => run_command(arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is gone too, the exit code still says it.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Which of its two names the program answers to.
enum Invocation {
    /// The kubelet, with the arguments that follow.
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
        // Nothing else is looked at, so what was not understood is said here.
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
    let host = Host::observe().context("cannot find out about this machine")?;
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
        // Clap's exit code: 0 for help and version, 2 for a wrong command line.
        Err(error) => {
            error.print()?;
            return Ok(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from));
        }
    };
    match cli.command {
        Command::Up(arguments) => commands::up::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Down(arguments) => commands::down::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Reset(arguments) => commands::reset::run(&arguments),
        Command::Status(arguments) => commands::status::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Images(arguments) => commands::images::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Why(arguments) => commands::why::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Plan { case } => commands::plan::run(&case).map(|()| ExitCode::SUCCESS),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
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

/// Whether nobody reads our output any more, as with `podwright doctor | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_no_contradictions() {
        command().debug_assert();
    }

    #[test]
    fn the_program_answers_to_the_name_kubelet() {
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
    fn every_command_says_what_it_does() {
        for command in command().get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() > 10 && !about.ends_with('.'), "{}: {about}", command.get_name());
        }
    }
}
