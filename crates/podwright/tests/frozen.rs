//! Snapshots of the interfaces that scripts and tools rely on: flags, commands, exit codes,
//! `/configz`.
//!
//! Each test compares with a file in `tests/snapshots`; see `podwright_testkit::snapshot`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use podwright::config::field::FieldPath;
use podwright::config::flags::{FLAGS, Sets};
use podwright::config::kubelet::KubeletConfiguration;
use podwright::config::options::NodeOptions;
use podwright_testkit::snapshot;

const PODWRIGHT: &str = env!("CARGO_BIN_EXE_podwright");
/// An unprivileged user that exists on every machine.
const NOBODY: u32 = 65534;

fn check(name: &str, shown: &str) {
    snapshot::check(env!("CARGO_MANIFEST_DIR"), name, shown);
}

#[test]
fn kubelet_flags_keep_their_names_types_and_defaults() {
    let configuration = serde_json::to_value(KubeletConfiguration::default()).unwrap();
    let options = serde_json::to_value(NodeOptions::default()).unwrap();
    let mut shown = String::new();
    let mut flags = FLAGS.to_vec();
    flags.sort_by_key(|flag| flag.name);
    for flag in flags {
        let (sets, default) = match flag.sets {
            Sets::Field(field) => (field, FieldPath::of(field).find(&configuration)),
            Sets::Option(option) => (option, FieldPath::of(option).find(&options)),
            Sets::Nothing => ("nothing", None),
        };
        let default = default.map_or("none".to_owned(), ToString::to_string);
        let short = flag.short.map(|short| format!(" -{short}")).unwrap_or_default();
        let help = if flag.help.is_empty() { "no help" } else { "help" };
        let effect = if flag.has_effect() { "" } else { ", without effect" };
        writeln!(
            shown,
            "--{}{short} {:?} sets {sets}, default {default}, {help}{effect}",
            flag.name, flag.kind
        )
        .unwrap();
    }
    check("flags", &shown);
}

#[test]
fn commands_keep_their_options() {
    let mut shown = String::new();
    let mut command = podwright::cli::command();
    command.build();
    write_command(&command, "", &mut shown);
    check("commands", &shown);
}

fn write_command(command: &clap::Command, above: &str, shown: &mut String) {
    let name = format!("{above}{}", command.get_name());
    let hidden = if command.is_hide_set() { " (hidden)" } else { "" };
    writeln!(shown, "{name}{hidden}").unwrap();
    // The kubelet's flags have their own snapshot.
    let arguments = command.get_arguments().filter(|_| command.get_name() != "kubelet");
    for argument in arguments {
        let mut line = match (argument.get_long(), argument.get_short()) {
            (Some(long), Some(short)) => format!("--{long} -{short}"),
            (Some(long), None) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => argument.get_id().to_string(),
        };
        if argument.get_action().takes_values() {
            for value in argument.get_value_names().unwrap_or_default() {
                write!(line, " {value}").unwrap();
            }
            let possible: Vec<String> =
                argument.get_possible_values().iter().map(|p| p.get_name().to_owned()).collect();
            if !possible.is_empty() {
                write!(line, " [{}]", possible.join("|")).unwrap();
            }
        }
        for default in argument.get_default_values() {
            write!(line, " default {}", default.display()).unwrap();
        }
        for (set, word) in [
            (argument.is_required_set(), " required"),
            (argument.is_global_set(), " global"),
            (argument.is_hide_set(), " hidden"),
        ] {
            if set {
                line.push_str(word);
            }
        }
        writeln!(shown, "  {line}").unwrap();
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        write_command(below, &format!("{name} "), shown);
    }
}

#[test]
fn default_configuration_is_shown_at_configz() {
    let configz = KubeletConfiguration::default().to_configz();
    check("configz", &format!("{configz:#}\n"));
}

/// User that runs the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Any,
    Nobody,
    /// Skipped if the tests are not run by root.
    Root,
}

#[test]
fn exit_codes_are_stable() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::create_dir(path("empty")).unwrap();
    fs::create_dir(path("foreign")).unwrap();
    fs::write(path("foreign/file"), "of a user").unwrap();
    fs::write(path("bad.yaml"), "kind: KubeletConfiguration\nmaxPods: many\n").unwrap();
    fs::write(path("bad.json"), "{ not a case").unwrap();
    let program = Program::for_everyone(directory.path());
    let empty = format!("--state-dir={}", path("empty"));
    let missing = format!("--state-dir={}", path("missing"));
    let foreign = format!("--state-dir={}", path("foreign"));
    let root_dir = format!("--root-dir={}", path("empty"));
    let (bad_yaml, bad_json) = (format!("--config={}", path("bad.yaml")), path("bad.json"));
    let no_config = format!("--config={}", path("none.yaml"));
    let no_case = path("none.json");
    let cases: &[Case<'_>] = &[
        ("no arguments", User::Any, &[]),
        ("help", User::Any, &["--help"]),
        ("help of a command", User::Any, &["up", "--help"]),
        ("version flag", User::Any, &["--version"]),
        ("version command", User::Any, &["version"]),
        ("unknown output format", User::Any, &["version", "-o", "xml"]),
        ("unknown command", User::Any, &["nonsense"]),
        ("unknown option", User::Any, &["up", "--nonsense"]),
        ("bad value of an option", User::Any, &["up", "--api-port=0"]),
        ("missing argument", User::Any, &["why"]),
        ("completion", User::Any, &["completion", "bash"]),
        ("completion for an unknown shell", User::Any, &["completion", "tcsh"]),
        ("kubelet: help", User::Any, &["kubelet", "--help"]),
        ("kubelet: version", User::Any, &["kubelet", "--version"]),
        ("kubelet: unknown flag", User::Any, &["kubelet", "--nonsense"]),
        ("kubelet: bad value", User::Any, &["kubelet", "--max-pods=many"]),
        ("kubelet: bad configuration", User::Any, &["kubelet", &bad_yaml]),
        ("kubelet: missing configuration", User::Any, &["kubelet", &no_config]),
        ("up: not root", User::Nobody, &["up", &missing]),
        ("down: not root", User::Nobody, &["down", &missing]),
        ("reset: not root", User::Nobody, &["reset", "--yes", &missing]),
        ("down: no node", User::Root, &["down", &missing]),
        ("reset: no directory", User::Root, &["reset", "--yes", &missing]),
        ("reset: refused, directory of a user", User::Root, &["reset", "--yes", &foreign]),
        ("status: no node", User::Root, &["status", &empty]),
        ("images list: no node", User::Root, &["images", "list", &empty]),
        ("images load: no archive named", User::Any, &["images", "load"]),
        ("why: no agent", User::Root, &["why", "default/web", &root_dir]),
        ("why: two directories", User::Any, &["why", "web", &root_dir, &empty]),
        ("plan: no such case", User::Any, &["plan", &no_case]),
        ("plan: bad case", User::Any, &["plan", &bad_json]),
    ];
    let (for_root, for_all): (Vec<_>, Vec<_>) =
        cases.iter().partition(|(_, user, _)| *user == User::Root);
    check("exit-codes", &program.exits(&for_all));
    if !nix::unistd::geteuid().is_root() {
        return podwright_testkit::report::skipped("the exit codes that root sees need root");
    }
    check("exit-codes-of-root", &program.exits(&for_root));
    assert!(Path::new(&path("foreign/file")).exists(), "the user's file is kept");
}

/// A case: name, user, arguments.
type Case<'a> = (&'a str, User, &'a [&'a str]);

struct Program(std::path::PathBuf);

impl Program {
    /// A copy that all users can execute: the target directory may be accessible to root only.
    fn for_everyone(directory: &Path) -> Self {
        let everyone = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory, everyone.clone()).unwrap();
        let program = directory.join("podwright");
        fs::copy(PODWRIGHT, &program).unwrap();
        fs::set_permissions(&program, everyone).unwrap();
        Self(program)
    }

    fn exits(&self, cases: &[&Case<'_>]) -> String {
        let mut shown = String::new();
        for (case, user, arguments) in cases {
            writeln!(shown, "{case}: {}", self.run(*user, arguments)).unwrap();
        }
        shown
    }

    /// The exit code, and which streams were written.
    fn run(&self, user: User, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.0);
        command.args(arguments).stdin(Stdio::null());
        if user == User::Nobody && nix::unistd::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        let code = output.status.code().map_or("ended by a signal".into(), |c| c.to_string());
        let stream = |bytes: &[u8]| if bytes.is_empty() { "silent" } else { "written" };
        format!("{code}, stdout {}, stderr {}", stream(&output.stdout), stream(&output.stderr))
    }
}
