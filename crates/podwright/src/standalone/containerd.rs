//! Private containerd of the standalone node.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use podwright_core::supervision;
use podwright_cri::{Client, Endpoint, Timeouts, Version};
use podwright_host::process::InheritedLimits;
use podwright_host::trusted_path;

use super::daemon::{Daemon, LockRelease};
use super::lock::NodeLock;
use super::network::Network;
use super::{Layout, image_archive};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of its log is searched for the reason of an exit; a panic prints many stacks.
const LOG_TAIL: u64 = 128 * 1024;

pub struct Containerd<'a> {
    layout: &'a Layout,
    limits: Option<InheritedLimits>,
}

impl<'a> Containerd<'a> {
    pub fn new(layout: &'a Layout) -> Self {
        Self { layout, limits: None }
    }

    /// Starts it with these limits instead of those of this process.
    pub fn with_limits(self, limits: Option<InheritedLimits>) -> Self {
        Self { limits, ..self }
    }

    pub fn daemon(&self) -> Daemon {
        Daemon::new(self.layout.run().join("containerd.pid"))
    }

    pub fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let socket = self.layout.socket();
        Ok(socket.to_string_lossy().parse()?)
    }

    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.endpoint()?, Timeouts::default()))
    }

    pub fn log(&self) -> PathBuf {
        self.layout.state().join("logs/containerd.log")
    }

    /// Why it exited, if its log ends with an error.
    pub fn exit_reason(&self) -> Option<String> {
        supervision::exit_reason(&self.end_of_log()?)
    }

    /// Why it runs without the plugin that serves pods.
    pub fn plugin_failure(&self) -> Option<String> {
        supervision::plugin_failure(&self.end_of_log()?)
    }

    fn end_of_log(&self) -> Option<String> {
        let mut file = File::open(self.log()).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL))).ok()?;
        let mut tail = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut tail).ok()?;
        Some(String::from_utf8_lossy(&tail).into_owned())
    }

    /// Starts it unless it is already running.
    pub fn start(&self, network: &Network, lock: &NodeLock) -> anyhow::Result<Started> {
        if self.daemon().running()?.is_some() {
            return Ok(Started::Already);
        }
        let program = find("containerd")?
            .context("containerd is not installed; on Debian: apt-get install containerd runc")?;
        let conf_dir = self.layout.cni().join("net.d");
        std::fs::create_dir_all(&conf_dir)?;
        let conflist = network.conflist(&self.layout.cni().join("addresses"));
        write(&conf_dir.join("10-podwright.conflist"), &conflist)?;
        let config = self.layout.containerd().join("config.toml");
        write(&config, &self.config(network, &conf_dir))?;
        let arguments = ["--config".as_ref(), config.as_os_str()];
        let lock = LockRelease::UntilStarted(lock);
        self.daemon().start(&program, &arguments, &self.log(), lock, self.limits)?;
        Ok(Started::Now)
    }

    /// Waits until it responds and has loaded the sandboxes of its previous run.
    pub async fn ready(&self) -> anyhow::Result<Version> {
        let client = Client::new(&self.endpoint()?, Timeouts { call: CALL_TIMEOUT });
        let deadline = tokio::time::Instant::now() + READY_TIMEOUT;
        loop {
            let probe = async {
                client.list_sandboxes(None).await?;
                client.version().await
            };
            let error = match probe.await {
                Ok(version) => return Ok(version),
                Err(error) => error,
            };
            let log = self.log();
            if self.daemon().running()?.is_none() {
                let reason = self.exit_reason().map(|reason| format!(": {reason}"));
                let reason = reason.unwrap_or_default();
                anyhow::bail!("containerd exited{reason}; see {}", log.display());
            }
            if tokio::time::Instant::now() > deadline {
                anyhow::bail!("containerd does not respond ({error}); see {}", log.display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Loads the sandbox image that is embedded in this program.
    pub async fn load_pause_image(&self) -> anyhow::Result<Started> {
        let client = self.client()?;
        if client.image_status(podwright_pause::IMAGE).await?.is_some() {
            return Ok(Started::Already);
        }
        let archive = podwright_pause::archive()?;
        image_archive::load(&self.layout.socket(), archive.as_slice(), "the sandbox image")?;
        Ok(Started::Now)
    }

    fn config(&self, network: &Network, conf_dir: &Path) -> String {
        let quoted = |path: &Path| toml_string(&path.to_string_lossy());
        let containerd = self.layout.containerd();
        format!(
            r#"# Written by podwright up; overwritten at every start.
version = 2
root = {root}
state = {state}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
  "io.containerd.nri.v1.nri",
]

[grpc]
  address = {socket}

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {pause}
  restrict_oom_score_adj = {restrict_oom}
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins}
    conf_dir = {conf_dir}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = {runc}
"#,
            root = quoted(&containerd.join("root")),
            state = quoted(&self.layout.runtime_state()),
            socket = quoted(&self.layout.socket()),
            opt = quoted(&containerd.join("opt")),
            pause = toml_string(podwright_pause::IMAGE),
            restrict_oom = !may_lower_oom_score(),
            plugins = quoted(&network.plugins),
            conf_dir = quoted(conf_dir),
            runc = quoted(&self.layout.run().join("runc")),
        )
    }
}

/// Whether it was started or loaded now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    Now,
    Already,
}

/// Whether this process has CAP_SYS_RESOURCE, without which no oom_score_adj can be lowered.
fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << CAP_SYS_RESOURCE) != 0
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A string literal that is valid in both TOML and JSON.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A program on the PATH or in the system directories that no other user can change.
pub fn find(program: &str) -> anyhow::Result<Option<PathBuf>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = trusted_path::PROGRAM_DIRECTORIES.into_iter().map(PathBuf::from);
    let directories = std::env::split_paths(&path).filter(|path| path.is_absolute()).chain(system);
    trusted_path::find_program(program, directories).with_context(|| {
        format!("{program} is not run as root, because another user can change it")
    })
}
