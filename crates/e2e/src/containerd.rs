//! Containerd of a bed, with its own socket, state, images and network, and no files elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;

use crate::cri::Cri;
use crate::environment::TestEnvironment;
use crate::images::{self, Archive};
use crate::leftovers::name_of;
use crate::process::Daemon;
use crate::tools::provide;

const START: Duration = Duration::from_secs(120);

/// A containerd release line packaged by Debian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    #[default]
    V1_6,
    V1_7,
    V2,
}

impl Release {
    /// The release in `PODWRIGHT_CONTAINERD`, or the default.
    pub fn from_environment() -> Result<Self> {
        match std::env::var("PODWRIGHT_CONTAINERD").as_deref() {
            Err(_) | Ok("" | "1.6") => Ok(Self::V1_6),
            Ok("1.7") => Ok(Self::V1_7),
            Ok("2") => Ok(Self::V2),
            Ok(other) => bail!("PODWRIGHT_CONTAINERD is {other:?}; known: 1.6, 1.7, 2"),
        }
    }

    fn tool(self) -> &'static str {
        match self {
            Self::V1_6 => "containerd-1.6",
            Self::V1_7 => "containerd-1.7",
            Self::V2 => "containerd-2",
        }
    }
}

pub struct Containerd {
    environment: Arc<TestEnvironment>,
    release: Release,
    programs: PathBuf,
    pause: String,
    daemon: Daemon,
}

impl Containerd {
    /// Starts it with every image of [`images::archives`] and a bridge network for pods.
    pub(crate) async fn start(
        environment: Arc<TestEnvironment>,
        release: Release,
        pod_subnet: &str,
    ) -> Result<Self> {
        let programs = provide(release.tool())?;
        let archives = images::archives()?;
        let pause = images::pause(&archives)?.to_owned();
        let settings = ContainerdConfig {
            directory: environment.path("containerd"),
            networks: environment.path("cni"),
            plugins: provide("cni-plugins")?,
            runc: programs.join("runc"),
            crun: provide("crun")?.join("crun"),
            pause: pause.clone(),
        };
        fs::create_dir_all(&settings.directory)?;
        fs::create_dir_all(&settings.networks)?;
        fs::write(environment.path("containerd.toml"), settings.to_toml())?;
        fs::write(
            settings.networks.join("10-bed.conflist"),
            conflist(&name_of(environment.id()), pod_subnet, &environment.path("cni-data")),
        )?;
        let daemon = launch(&environment, &programs)?;
        let containerd = Self { environment, release, programs, pause, daemon };
        containerd.until_ready().await?;
        for archive in &archives {
            containerd.import(archive).await?;
        }
        Ok(containerd)
    }

    pub fn release(&self) -> Release {
        self.release
    }

    /// The sandbox image.
    pub fn pause_image(&self) -> &str {
        &self.pause
    }

    pub fn socket(&self) -> PathBuf {
        self.environment.path("containerd/sock")
    }

    /// The value of `--container-runtime-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Loads an archive into the namespace that the CRI uses.
    pub async fn import(&self, archive: &Archive) -> Result<()> {
        let path = archive.path.display().to_string();
        self.ctr(&["images", "import", &path]).await.map(drop)
    }

    /// Runs `ctr` in the namespace that the CRI uses.
    pub async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.environment.command(self.programs.join("ctr"));
        command.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(arguments);
        self.environment.run(command).await
    }

    /// Kills it with SIGKILL. Shims and containers keep running.
    pub async fn kill(&self) -> Result<()> {
        self.daemon.kill().await.map(drop)
    }

    /// Starts it again after [`Self::kill`] or a crash, and waits until it responds.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill().await?;
        self.daemon = launch(&self.environment, &self.programs)?;
        self.until_ready().await
    }

    /// Queries the CRI service itself: containerd's other services respond before it has recovered
    /// the sandboxes of the previous process.
    async fn until_ready(&self) -> Result<()> {
        let response = async || {
            let cri = Cri::connect(&self.socket(), String::new(), Path::new("")).await?;
            cri.sandboxes().await.map(|_| Some(()))
        };
        self.daemon.until("containerd to respond", START, response).await
    }
}

fn launch(environment: &TestEnvironment, programs: &Path) -> Result<Daemon> {
    let mut command = environment.command(programs.join("containerd"));
    command.arg("--config").arg(environment.path("containerd.toml"));
    // Its own shim and runc come first in PATH; iptables for the network plugins comes from the
    // system.
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display());
    command.env("PATH", path);
    environment.daemon("containerd", command)
}

struct ContainerdConfig {
    directory: PathBuf,
    networks: PathBuf,
    plugins: PathBuf,
    runc: PathBuf,
    crun: PathBuf,
    pause: String,
}

impl ContainerdConfig {
    /// Config format version 2, which 1.6, 1.7 and 2 all read.
    fn to_toml(&self) -> String {
        let Self { directory, networks, plugins, runc, crun, pause } = self;
        let directory = directory.display();
        // Plugins left out: `opt` creates /opt/containerd, `nri` listens at a machine-wide path,
        // and the snapshotters are for file systems a bed does not have. Handlers: `other` is runc
        // again, for machines whose cgroup setup crun does not support. CAP_SYS_RESOURCE may be
        // missing, so a container's oom_score_adj may not go below ours.
        format!(
            r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{directory}/sock"

[ttrpc]
address = "{directory}/sock.ttrpc"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{networks}"

[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{directory}/runc"
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]
BinaryName = "{runc}"
Root = "{directory}/other"
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "{crun}"
Root = "{directory}/crun"
SystemdCgroup = false
"#,
            plugins = plugins.display(),
            networks = networks.display(),
            runc = runc.display(),
            crun = crun.display(),
        )
    }
}

/// A bridge inside the bed's namespace, with host ports and bandwidth limits.
fn conflist(name: &str, subnet: &str, data: &Path) -> String {
    let document = json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0",
                "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": data,
                    "ranges": [[{ "subnet": subnet }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
            { "type": "bandwidth", "capabilities": { "bandwidth": true } },
        ],
    });
    format!("{document:#}\n")
}
