//! The hour of use in `docs/tour.md`: every command, with the output that the page shows.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use podwright_e2e::process::{Stdin, everything, run};
use podwright_e2e::{images, wait};

use crate::privilege::needs_root;
use crate::standalone::Standalone;
use crate::transcript;

/// How long a command that only reads may be repeated, and how long any may take.
const LIMIT: Duration = Duration::from_secs(180);
/// Commands that change nothing: they are repeated until they print what the page shows.
const READS: [&str; 6] = [
    "podwright why",
    "podwright status",
    "podwright doctor",
    "kubectl get",
    "kubectl logs",
    "curl",
];

#[tokio::test]
async fn every_command_of_the_tour_prints_what_the_page_shows() {
    needs_root!();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tour.md");
    let page = fs::read_to_string(page).unwrap();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "tour");
    let shell = Shell::new(&bed, &node);
    let commands = transcript::commands(&page);
    assert!(commands.len() > 20, "the page has {} commands", commands.len());
    for command in commands {
        let place = format!("docs/tour.md:{}: {}", command.line, command.text);
        let reads = READS.iter().any(|read| command.text.starts_with(read));
        let limit = if reads { LIMIT } else { Duration::ZERO };
        let shown = async || {
            let printed = shell.run(&bed, &command.text).await;
            match transcript::missing(&command.output, &printed) {
                None => Ok(true),
                Some(line) => anyhow::bail!("no line {line:?} in\n{printed}"),
            }
        };
        wait::until_true(place, limit, shown).await.unwrap();
    }
    bed.close().unwrap();
}

/// Programs and files by the names that the page uses.
struct Shell {
    programs: PathBuf,
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl Shell {
    fn new(bed: &Bed, node: &Standalone<'_>) -> Self {
        let programs = bed.path("tour-programs");
        fs::create_dir_all(&programs).unwrap();
        // The page uses the default state directory.
        let script =
            format!("#!/bin/sh\nexec {} \"$@\" --state-dir {}\n", node.program, node.state);
        let podwright = programs.join("podwright");
        fs::write(&podwright, script).unwrap();
        fs::set_permissions(&podwright, fs::Permissions::from_mode(0o755)).unwrap();
        let kubectl = node.kubectl(Release::V1_32).command(&[]);
        let kubectl = program_of(&kubectl);
        symlink(kubectl, programs.join("kubectl")).unwrap();
        let directory = bed.path("tour-directory");
        fs::create_dir_all(&directory).unwrap();
        let archives = images::archives().unwrap();
        let test = archives.iter().find(|archive| archive.path.ends_with("test.tar")).unwrap();
        symlink(&test.path, directory.join("test.tar")).unwrap();
        symlink(Path::new(&node.state).join("manifests"), directory.join("manifests")).unwrap();
        Self { programs, directory, kubeconfig: Path::new(&node.state).join("kubeconfig") }
    }

    /// Runs a command line to its end; what it prints, whether it succeeds or not.
    async fn run(&self, bed: &Bed, text: &str) -> String {
        let mut command = bed.command("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        command.args(["-c", "cd \"$1\" && eval \"$2\"", "sh"]).arg(&self.directory).arg(text);
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", bed.path("home"));
        let done = tokio::task::spawn_blocking(move || {
            run(&mut command, Stdin::Ends(b""), LIMIT).map(|output| everything(&output))
        });
        done.await.unwrap().unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// The last argument of a bed's command without arguments of its own is its program.
fn program_of(command: &Command) -> PathBuf {
    command.get_args().last().map(PathBuf::from).unwrap()
}
