//! A containerd of the bed's own: its socket, state, images and network, and no trace elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;

use crate::cri::Cri;
use crate::ground::Ground;
use crate::images::{self, Archive};
use crate::process::Daemon;
use crate::remains::name_of;
use crate::tools::provide;

const START: Duration = Duration::from_secs(120);

/// A release line of containerd that Debian carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    #[default]
    V1_6,
    V1_7,
    V2,
}

impl Release {
    /// The one that `PODWRIGHT_CONTAINERD` asks for, or the default.
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
    ground: Arc<Ground>,
    release: Release,
    programs: PathBuf,
    pause: String,
    daemon: Daemon,
}

impl Containerd {
    /// Starts it with every image of [`images::archives`] and a bridge network for pods.
    pub(crate) async fn start(
        ground: Arc<Ground>,
        release: Release,
        pod_subnet: &str,
    ) -> Result<Self> {
        let programs = provide(release.tool())?;
        let archives = images::archives()?;
        let pause = images::pause(&archives)?.to_owned();
        let settings = Settings {
            folder: ground.path("containerd"),
            networks: ground.path("cni"),
            plugins: provide("cni-plugins")?,
            runc: programs.join("runc"),
            crun: provide("crun")?.join("crun"),
            pause: pause.clone(),
        };
        fs::create_dir_all(&settings.folder)?;
        fs::create_dir_all(&settings.networks)?;
        fs::write(ground.path("containerd.toml"), settings.to_toml())?;
        fs::write(
            settings.networks.join("10-bed.conflist"),
            conflist(&name_of(ground.id()), pod_subnet, &ground.path("cni-data")),
        )?;
        let daemon = launch(&ground, &programs)?;
        let containerd = Self { ground, release, programs, pause, daemon };
        containerd.answers().await?;
        for archive in &archives {
            containerd.import(archive).await?;
        }
        Ok(containerd)
    }

    pub fn release(&self) -> Release {
        self.release
    }

    /// The image of every sandbox.
    pub fn pause_image(&self) -> &str {
        &self.pause
    }

    pub fn socket(&self) -> PathBuf {
        self.ground.path("containerd/sock")
    }

    /// What `--container-runtime-endpoint` takes.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Loads an archive into the namespace that CRI uses.
    pub async fn import(&self, archive: &Archive) -> Result<()> {
        let path = archive.path.display().to_string();
        self.ctr(&["images", "import", &path]).await.map(drop)
    }

    /// Runs `ctr` in the namespace that CRI uses.
    pub async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.ground.command(self.programs.join("ctr"));
        command.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(arguments);
        self.ground.run(command).await
    }

    /// Kills it with SIGKILL. Shims and containers go on.
    pub async fn kill(&self) -> Result<()> {
        self.daemon.kill().await.map(drop)
    }

    /// Starts it again, after [`Self::kill`] or a crash; waits until it answers.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill().await?;
        self.daemon = launch(&self.ground, &self.programs)?;
        self.answers().await
    }

    /// Asks the CRI service itself: containerd's other services answer before it has found the
    /// sandboxes of its life before.
    async fn answers(&self) -> Result<()> {
        let answer = async || {
            let cri = Cri::connect(&self.socket(), String::new(), Path::new("")).await?;
            cri.sandboxes().await.map(|_| Some(()))
        };
        self.daemon.until("containerd to answer", START, answer).await
    }
}

fn launch(ground: &Ground, programs: &Path) -> Result<Daemon> {
    let mut command = ground.command(programs.join("containerd"));
    command.arg("--config").arg(ground.path("containerd.toml"));
    // Its shim and its runc first; iptables for the network plugins from the system.
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display());
    command.env("PATH", path);
    ground.daemon("containerd", command)
}

struct Settings {
    folder: PathBuf,
    networks: PathBuf,
    plugins: PathBuf,
    runc: PathBuf,
    crun: PathBuf,
    pause: String,
}

impl Settings {
    /// Version 2 of the format: the one that 1.6, 1.7 and 2 all read.
    fn to_toml(&self) -> String {
        let Self { folder, networks, plugins, runc, crun, pause } = self;
        let folder = folder.display();
        // Plugins left out: `opt` makes /opt/containerd, `nri` listens at a path for the whole
        // machine, the snapshotters are for file systems a bed does not have.
        // Handlers: `other` is runc again, for machines whose cgroups crun does not know.
        // CAP_SYS_RESOURCE may be missing, so a container's oom_score_adj may not go below ours.
        format!(
            r#"version = 2
root = "{folder}/root"
state = "{folder}/state"
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
address = "{folder}/sock"

[ttrpc]
address = "{folder}/sock.ttrpc"

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
Root = "{folder}/runc"
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]
BinaryName = "{runc}"
Root = "{folder}/other"
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "{crun}"
Root = "{folder}/crun"
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
