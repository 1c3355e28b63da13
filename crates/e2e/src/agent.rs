//! The kubelet of a bed: ours, or any other that takes upstream's flags and configuration file.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use serde_json::{Map, Value, json};

use crate::bed::Bed;
use crate::bystanders::{AgentPlaces, Bystanders, Kubelet};
use crate::ground::Ground;
use crate::http::{Tls, send};
use crate::netns::NODE_ADDRESS;
use crate::pki::PairFiles;
use crate::process::Daemon;
use crate::tools;

const GRACE: Duration = Duration::from_secs(20);
const START: Duration = Duration::from_secs(60);

/// What kind of kubelet to start, and how.
pub struct AgentBuilder<'bed> {
    bed: &'bed Bed,
    node: String,
    program: Vec<OsString>,
    kubeconfig: Option<PathBuf>,
    bootstrap: Option<PathBuf>,
    changes: Vec<Value>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    ports: Ports,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    api: u16,
    healthz: u16,
}

/// A running kubelet. Dropped, it is killed; its containers end with the bed.
pub struct Agent {
    ground: Arc<Ground>,
    node: String,
    folder: PathBuf,
    cgroup_root: String,
    ports: Ports,
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    daemon: Daemon,
}

impl<'bed> AgentBuilder<'bed> {
    pub(crate) fn new(bed: &'bed Bed, node: &str) -> Self {
        Self {
            bed,
            node: node.to_owned(),
            program: Vec::new(),
            kubeconfig: None,
            bootstrap: None,
            changes: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            ports: Ports { api: 10250, healthz: 10248 },
        }
    }

    /// Runs this program, which needs no subcommand: an upstream kubelet, or a link called so.
    pub fn program(self, path: impl Into<OsString>) -> Self {
        self.command_line([path.into()])
    }

    /// The same with arguments that come before all others; with nothing at all, ours runs.
    pub fn command_line(mut self, words: impl IntoIterator<Item = OsString>) -> Self {
        self.program = words.into_iter().collect();
        self
    }

    /// Joins the bed's cluster with a certificate for the node.
    pub fn joined(self) -> Result<Self> {
        let kubeconfig = self.bed.control_plane()?.node_kubeconfig(&self.node)?;
        Ok(self.kubeconfig(kubeconfig))
    }

    /// Joins by TLS bootstrap: its own kubeconfig does not exist yet.
    pub fn bootstrapped(mut self) -> Result<Self> {
        self.bootstrap = Some(self.bed.control_plane()?.bootstrap_kubeconfig()?);
        let kubeconfig = self.folder().join("kubeconfig");
        Ok(self.kubeconfig(kubeconfig))
    }

    /// Joins with a kubeconfig of the test's own.
    pub fn kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// Changes the KubeletConfiguration: objects are merged, `null` removes a field.
    pub fn configure(mut self, change: Value) -> Self {
        self.changes.push(change);
        self
    }

    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Other ports than 10250 and 10248: for a second agent in the same bed.
    pub fn ports(mut self, api: u16, healthz: u16) -> Self {
        self.ports = Ports { api, healthz };
        self
    }

    /// Starts it. It is not healthy yet: see [`Agent::healthy`].
    pub fn start(mut self) -> Result<Agent> {
        let ground = self.bed.ground().clone();
        let folder = self.folder();
        for below in ["root", "pod-logs", "containers", "manifests", "certificates", "plugins"] {
            fs::create_dir_all(folder.join(below))?;
        }
        let cgroup_root = ground.cgroup().child(&self.node)?;
        if let Some(bystanders) = self.bed.bystanders() {
            let other = tools::reference().is_some_and(|kubelet| {
                self.program.first().is_some_and(|program| *program == kubelet)
            });
            let kubelet = if other { Kubelet::Other } else { Kubelet::Ours };
            let places = AgentPlaces { directory: &folder, cgroup: &self.node, kubelet };
            bystanders.plant_around(&ground, &places)?;
        }
        let mut configuration = self.defaults(&folder, &cgroup_root)?;
        for change in &self.changes {
            merge(&mut configuration, change);
        }
        fs::write(folder.join("config.yaml"), format!("{configuration:#}\n"))?;
        let command = self.command(&folder)?;
        let environment = std::mem::take(&mut self.environment);
        let daemon = launch(&ground, &self.node, &command, &environment)?;
        Ok(Agent {
            ground,
            folder,
            cgroup_root,
            ports: self.ports,
            node: self.node,
            command,
            environment,
            daemon,
        })
    }

    fn folder(&self) -> PathBuf {
        self.bed.ground().path("agents").join(&self.node)
    }

    fn command(&mut self, folder: &Path) -> Result<Vec<OsString>> {
        let mut command = std::mem::take(&mut self.program);
        if command.is_empty() {
            command.push(tools::podwright()?.into_os_string());
            command.push("kubelet".into());
        }
        let mut flag = |name: &str, value: &OsStr| {
            let mut flag = OsString::from(format!("--{name}="));
            flag.push(value);
            command.push(flag);
        };
        flag("config", folder.join("config.yaml").as_os_str());
        flag("root-dir", folder.join("root").as_os_str());
        flag("cert-dir", folder.join("certificates").as_os_str());
        flag("hostname-override", OsStr::new(&self.node));
        flag("node-ip", OsStr::new(&NODE_ADDRESS.to_string()));
        flag("v", OsStr::new("4"));
        if let Some(path) = &self.kubeconfig {
            flag("kubeconfig", path.as_os_str());
        }
        if let Some(path) = &self.bootstrap {
            flag("bootstrap-kubeconfig", path.as_os_str());
        }
        command.append(&mut self.arguments);
        Ok(command)
    }

    /// Everything a kubelet would otherwise share with the machine is the bed's own; and nothing
    /// depends on how full the machine's disk is.
    fn defaults(&self, folder: &Path, cgroup_root: &str) -> Result<Value> {
        let mut configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup_root,
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": self.bed.containerd().endpoint(),
            "failCgroupV1": false,
            "failSwapOn": false,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.ports.healthz,
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": folder.join("pod-logs"),
            "port": self.ports.api,
            "readOnlyPort": 0,
            "resolvConf": "",
            "staticPodPath": folder.join("manifests"),
            "volumePluginDir": folder.join("plugins"),
        });
        if self.kubeconfig.is_some() && self.bed.control_plane().is_ok() {
            merge(&mut configuration, &self.serving()?);
        }
        Ok(configuration)
    }

    /// A member of a cluster serves with a certificate of the cluster's authority and asks the API
    /// server who may come in.
    fn serving(&self) -> Result<Value> {
        let authority = self.bed.control_plane()?.authority();
        let addresses = [IpAddr::V4(NODE_ADDRESS), IpAddr::from([127, 0, 0, 1])];
        let user = format!("system:node:{}", self.node);
        let pair = authority.server(&user, &[&self.node, "localhost"], &addresses)?;
        let PairFiles { certificate, key } =
            authority.save(&format!("kubelet-{}", self.node), &pair)?;
        Ok(json!({
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": authority.files().certificate },
            },
            "authorization": { "mode": "Webhook" },
            "tlsCertFile": certificate,
            "tlsPrivateKeyFile": key,
        }))
    }
}

fn launch(
    ground: &Ground,
    node: &str,
    command: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<Daemon> {
    let (program, arguments) = command.split_first().context("an agent is a command line")?;
    let mut command = ground.command(program);
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    ground.daemon(node, command)
}

impl Agent {
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Its `cgroupRoot`.
    pub fn cgroup_root(&self) -> &str {
        &self.cgroup_root
    }

    /// Its `--root-dir`.
    pub fn root_dir(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Its `podLogsDir`.
    pub fn pod_logs(&self) -> PathBuf {
        self.folder.join("pod-logs")
    }

    /// The log directories of its pods, without those of bystanders.
    pub fn log_directories(&self) -> Result<Vec<PathBuf>> {
        entries(&self.pod_logs())
    }

    /// The directories of its pods, without those of bystanders.
    pub fn pod_directories(&self) -> Result<Vec<PathBuf>> {
        entries(&self.root_dir().join("pods"))
    }

    /// A folder for the links that upstream puts into /var/log/containers.
    pub fn log_links(&self) -> PathBuf {
        self.folder.join("containers")
    }

    /// Its `staticPodPath`.
    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    /// Its `--cert-dir`.
    pub fn certificates(&self) -> PathBuf {
        self.folder.join("certificates")
    }

    /// Its configuration file.
    pub fn configuration(&self) -> PathBuf {
        self.folder.join("config.yaml")
    }

    /// Where it serves, inside the namespace.
    pub fn url(&self) -> String {
        format!("https://{NODE_ADDRESS}:{}", self.ports.api)
    }

    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Puts a static pod into its manifest folder, whole or not at all.
    pub fn add_manifest(&self, name: &str, pod: &Value) -> Result<PathBuf> {
        let part = self.folder.join(format!("{name}.part"));
        let path = self.manifests().join(format!("{name}.json"));
        fs::write(&part, serde_json::to_vec(pod)?)?;
        fs::rename(&part, &path).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Waits until `/healthz` says ok.
    pub async fn healthy(&self) -> Result<()> {
        let healthy = async || {
            let url = format!("http://127.0.0.1:{}/healthz", self.ports.healthz);
            let request = Request::get(url).body(Default::default())?;
            let answer = send(self.ground.netns(), request, &Tls::default()).await?;
            Ok(answer.status.is_success().then_some(()))
        };
        self.daemon.until("the agent to be healthy", START, healthy).await
    }

    /// SIGKILL: at whatever it was doing.
    pub async fn kill(&self) -> Result<ExitStatus> {
        self.daemon.kill().await
    }

    /// SIGTERM, and SIGKILL if it takes long.
    pub async fn stop(&self) -> Result<ExitStatus> {
        self.daemon.stop(GRACE).await
    }

    /// Starts another build of the program, with the same arguments and in the same directories,
    /// after this one was killed or stopped; the log goes on.
    pub async fn restart_as(&mut self, program: &Path) -> Result<()> {
        let first = self.command.first_mut().context("an agent is a command line")?;
        *first = program.as_os_str().to_owned();
        self.restart().await
    }

    /// Starts the same command again, after it was killed or stopped; its log goes on.
    pub async fn restart(&mut self) -> Result<()> {
        self.daemon.kill().await?;
        self.daemon = launch(&self.ground, &self.node, &self.command, &self.environment)?;
        Ok(())
    }
}

/// What is in a directory that a user has put nothing into.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("listing {}", directory.display());
    let paths = fs::read_dir(directory).with_context(failed)?.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| !Bystanders::is_one(path)).collect())
}

/// JSON merge: objects field by field, `null` removes, anything else replaces.
fn merge(base: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *base = change.clone();
        return;
    };
    if !base.is_object() {
        *base = Value::Object(Map::new());
    }
    let Value::Object(base) = base else { return };
    for (field, value) in change {
        if value.is_null() {
            base.remove(field);
        } else {
            merge(base.entry(field).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_merged_field_by_field() {
        for (case, base, change, want) in [
            ("new field", json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (
                "nested",
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": 3}}),
                json!({"a": {"b": 3, "c": 2}}),
            ),
            ("null removes", json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            ("a list is replaced", json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
        ] {
            let mut merged = base;
            merge(&mut merged, &change);
            assert_eq!(merged, want, "{case}");
        }
    }
}
