//! Fixture recorder: records what a given build of the program leaves on a machine when it is
//! killed.
//!
//! Run as root with the build whose formats must stay readable:
//!
//! ```sh
//! cargo run -p podwright-e2e --bin fixtures -- --program ./podwright-87c89a6 --commit 87c89a6
//! ```
//!
//! A joined node and a standalone node each run one pod of every kind that leaves something on
//! disk, on a real containerd. Then the agent is killed with SIGKILL, and its directory, the
//! runtime's state and the API server's state go into one text file each. Everything runs in its
//! own namespaces, so that paths and the host name are the same on every machine. No private key
//! goes into a fixture.

// A command-line tool prints to its user.
#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "run by hand: it prints its progress, and a missing JSON field is null"
)]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::embedded::Embedded;
use podwright_e2e::fixture::{self, Recorded};
use podwright_e2e::kubectl::{self, Kubectl};
use podwright_e2e::registry::Registry;
use podwright_e2e::{images, isolation, tools};
use serde_json::json;

const NODE: &str = "node-a";
/// The joined node, with kubeadm's paths.
const ROOT: &str = "/var/lib/kubelet";
const MANIFESTS: &str = "/var/lib/manifests";
/// The standalone node.
const STATE: &str = "/var/lib/podwright";

/// Runs the program again with its own host name, machine id and /var/lib; of the machine's
/// /var/lib only the list of installed packages is visible, which `testbed/provide` reads.
const SETUP: &str = r#"
set -e
hostname "$1"
shift
mkdir /run/lib
mount --bind /var/lib /run/lib
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/cni /var/lib/dpkg
mount --bind /run/lib/dpkg /var/lib/dpkg
for file in /etc/machine-id /sys/class/dmi/id/product_uuid; do
    [ -e "$file" ] || continue
    echo 00000000000000000000000000000001 >/var/lib/id
    mount --bind /var/lib/id "$file"
done
exec "$@"
"#;

/// Record what a build leaves on disk
#[derive(Parser)]
#[command(name = "fixtures")]
struct Arguments {
    /// The build to record
    #[arg(long)]
    program: PathBuf,
    /// The commit of that build
    #[arg(long)]
    commit: String,
    /// Output directory
    #[arg(long, default_value = "crates/podwright/tests/fixtures")]
    output: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if !isolation::inside() {
        return run_isolated();
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let directory = arguments.output.join(&arguments.commit);
    std::fs::create_dir_all(&directory)?;
    let program = std::path::absolute(&arguments.program)?;
    let joined = runtime.block_on(joined(&program, &arguments.commit))?;
    joined.save(&directory.join("joined.json"))?;
    let up = runtime.block_on(standalone(&program, &arguments.commit))?;
    up.save(&directory.join("up.json"))
}

/// The tools must be provided before: nothing can be fetched inside.
fn run_isolated() -> Result<()> {
    for tool in ["host", "containerd-2", "cni-plugins", "crun", "kubectl-1.36"] {
        tools::provide(tool)?;
    }
    let mut command = isolation::command("unshare");
    command.args(["--uts", "sh", "-c", SETUP, "fixtures", NODE]);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
    let status = command.status().context("cannot start unshare")?;
    ensure!(status.success(), "the recording ended with {status}");
    Ok(())
}

async fn joined(program: &Path, commit: &str) -> Result<Recorded> {
    println!("joined node: starting");
    let bed = Bed::builder().containerd(Release::V2).start().await?;
    let server = Embedded::start(&bed).await?;
    let registry = Registry::start(&bed, Some(fixture::LOGIN)).await?;
    std::fs::create_dir_all(MANIFESTS)?;
    let agent = bed
        .agent(NODE)
        .command_line([program.into(), OsString::from("kubelet")])
        .kubeconfig(server.kubeconfig())
        .configure(json!({ "staticPodPath": MANIFESTS, "podLogsDir": "/var/lib/pod-logs" }))
        .argument(format!("--root-dir={ROOT}"))
        .start()?;
    agent.healthy().await?;
    let kubectl = bed.kubectl_with(kubectl::Release::V1_36, server.kubeconfig().to_owned())?;
    fixture::populate(&kubectl, &registry, NODE, Path::new(MANIFESTS), Path::new(ROOT)).await?;
    let answers = answers(&bed, program, &kubectl).await?;
    let objects = objects(&kubectl).await?;
    agent.kill().await?;
    println!("joined node: recording");
    let recorded = Recorded::new(commit, NODE, ROOT, MANIFESTS)
        .files(Path::new(ROOT), &[])?
        .manifests(Path::new(MANIFESTS))?
        .runtime(&bed.containerd().socket())
        .await?
        .objects(objects)
        .answers(answers);
    drop((agent, registry, server, kubectl));
    bed.close()?;
    Ok(recorded)
}

/// Output of `podwright why` and its records, for pods in different states.
async fn answers(bed: &Bed, program: &Path, kubectl: &Kubectl) -> Result<serde_json::Value> {
    fixture::crash(kubectl, NODE).await?;
    let (program, file) = (program.to_string_lossy(), "/var/lib/case.json");
    let mut answers = json!({});
    for pod in ["crashing", "deferred", "finished", "rejected", "static", "users", "volumes"] {
        let mut command = vec![&*program, "why", pod, "--root-dir", ROOT, "--output", "json"];
        // A pod that was not admitted has no decision to record.
        if pod != "rejected" {
            command.extend(["--record", file]);
        }
        answers[pod]["why"] = json!(bed.exec(&command).await?);
        if pod != "rejected" {
            answers[pod]["case"] = json!(std::fs::read_to_string(file)?);
        }
    }
    kubectl.run(&["delete", "pod", "crashing"]).await?;
    Ok(answers)
}

/// Without machine-specific fields, and without objects that the API server creates itself.
async fn objects(kubectl: &Kubectl) -> Result<Vec<serde_json::Value>> {
    let kinds = ["configmaps/settings", "secrets/registry"];
    let listed = kubectl.run(&["get", "pods", "-ojson"]).await?;
    let mut objects = fixture::items(&listed)?;
    for kind in kinds {
        objects.push(serde_json::from_str(&kubectl.run(&["get", kind, "-ojson"]).await?)?);
    }
    Ok(objects)
}

async fn standalone(program: &Path, commit: &str) -> Result<Recorded> {
    println!("standalone node: starting");
    let bed = Bed::builder().containerd(Release::V2).start().await?;
    let registry = Registry::start(&bed, Some(fixture::LOGIN)).await?;
    let programs = tools::provide("containerd-2")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let run = async |arguments: &[&str]| {
        let mut command = bed.command(&program.to_string_lossy());
        command.args(arguments).env("PATH", format!("{}:{path}", programs.display()));
        bed.environment().run(command).await
    };
    run(&["up", "--state-dir", STATE]).await?;
    let archives = images::archives()?;
    let test = archives.iter().find(|archive| archive.path.ends_with("test.tar"));
    let test = test.context("no test image: cargo xtask images")?.path.display().to_string();
    run(&["images", "--state-dir", STATE, "load", &test]).await?;
    let state = Path::new(STATE);
    let made: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(state.join("made.json"))?)?;
    let instance = made["cgroup_root"].as_str().and_then(|root| root.rsplit('-').next());
    let volatile = Path::new("/run/podwright");
    let own = volatile.join(instance.context("made.json does not name a cgroup")?);
    // 87c89a6 restricts it to root, and the root of a user namespace is a different user.
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o711))?;
    let kubectl = bed.kubectl_with(kubectl::Release::V1_36, state.join("kubeconfig"))?;
    let root = state.join("kubelet");
    fixture::populate(&kubectl, &registry, NODE, &state.join("manifests"), &root).await?;
    let pid: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(own.join("agent.pid"))?)?;
    bed.exec(&["kill", "-9", &pid["pid"].to_string()]).await?;
    println!("standalone node: recording");
    // Excludes the runtime's own files, logs, and anything with a private key: a test makes its
    // own.
    let left_out =
        ["containerd", "logs", "api/ca.key", "api/ca.crt", "api/token.key", "kubeconfig"];
    let recorded =
        Recorded::new(commit, NODE, &root.to_string_lossy(), &format!("{STATE}/manifests"))
            .files(state, &left_out)?
            .volatile(volatile, &["containerd", "runc"])?
            .runtime(&own.join("containerd.sock"))
            .await?;
    run(&["down", "--state-dir", STATE]).await?;
    drop((registry, kubectl));
    bed.close()?;
    Ok(recorded)
}
