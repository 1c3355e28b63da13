//! Kubelet of a test bed: Podwright's agent, or any other kubelet that takes the upstream flags and
//! configuration file.

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
use crate::bystanders::{AgentDirectories, Bystanders, Kubelet};
use crate::environment::TestEnvironment;
use crate::http::{Tls, send};
use crate::netns::NODE_ADDRESS;
use crate::pki::PairFiles;
use crate::process::Daemon;
use crate::tools;

const GRACE: Duration = Duration::from_secs(20);
const START: Duration = Duration::from_secs(60);

/// Configuration of a kubelet that is not started yet.
pub struct AgentBuilder<'bed> {
    bed: &'bed Bed,
    node: String,
    program: Vec<OsString>,
    kubeconfig: Option<PathBuf>,
    bootstrap: Option<PathBuf>,
    changes: Vec<Value>,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    ports: Ports,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    api: u16,
    healthz: u16,
}

/// A running kubelet. Dropping it kills the process; its containers are removed with the bed.
pub struct Agent {
    environment: Arc<TestEnvironment>,
    node: String,
    directory: PathBuf,
    cgroup_root: String,
    ports: Ports,
    command: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
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
            variables: Vec::new(),
            ports: Ports { api: 10250, healthz: 10248 },
        }
    }

    /// Runs this program, which needs no subcommand: an upstream kubelet, or a link named
    /// `kubelet`.
    pub fn program(self, path: impl Into<OsString>) -> Self {
        self.command_line([path.into()])
    }

    /// Like [`Self::program`], with arguments that precede all others. If empty, Podwright runs.
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
        let kubeconfig = self.directory().join("kubeconfig");
        Ok(self.kubeconfig(kubeconfig))
    }

    /// Joins with a kubeconfig that the test provides.
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
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Ports other than 10250 and 10248, for a second agent in the same bed.
    pub fn ports(mut self, api: u16, healthz: u16) -> Self {
        self.ports = Ports { api, healthz };
        self
    }

    /// Starts the process without waiting for it to become healthy: see [`Agent::healthy`].
    pub fn start(mut self) -> Result<Agent> {
        let environment = self.bed.environment().clone();
        let directory = self.directory();
        for below in ["root", "pod-logs", "containers", "manifests", "certificates", "plugins"] {
            fs::create_dir_all(directory.join(below))?;
        }
        let cgroup_root = environment.cgroup().child(&self.node)?;
        if let Some(bystanders) = self.bed.bystanders() {
            let other = tools::reference().is_some_and(|kubelet| {
                self.program.first().is_some_and(|program| *program == kubelet)
            });
            let kubelet = if other { Kubelet::Other } else { Kubelet::Ours };
            let places = AgentDirectories { directory: &directory, cgroup: &self.node, kubelet };
            bystanders.create_around(&environment, &places)?;
        }
        let mut configuration = self.defaults(&directory, &cgroup_root)?;
        for change in &self.changes {
            merge(&mut configuration, change);
        }
        fs::write(directory.join("config.yaml"), format!("{configuration:#}\n"))?;
        let command = self.command(&directory)?;
        let variables = std::mem::take(&mut self.variables);
        let daemon = launch(&environment, &self.node, &command, &variables)?;
        Ok(Agent {
            environment,
            directory,
            cgroup_root,
            ports: self.ports,
            node: self.node,
            command,
            variables,
            daemon,
        })
    }

    fn directory(&self) -> PathBuf {
        self.bed.environment().path("agents").join(&self.node)
    }

    fn command(&mut self, directory: &Path) -> Result<Vec<OsString>> {
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
        flag("config", directory.join("config.yaml").as_os_str());
        flag("root-dir", directory.join("root").as_os_str());
        flag("cert-dir", directory.join("certificates").as_os_str());
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

    /// Everything a kubelet would otherwise share with the machine belongs to the bed, and the
    /// results do not depend on how full the machine's disk is.
    fn defaults(&self, directory: &Path, cgroup_root: &str) -> Result<Value> {
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
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": directory.join("pod-logs"),
            "port": self.ports.api,
            "readOnlyPort": 0,
            "resolvConf": "",
            "staticPodPath": directory.join("manifests"),
            "volumePluginDir": directory.join("plugins"),
        });
        if self.kubeconfig.is_some() && self.bed.control_plane().is_ok() {
            merge(&mut configuration, &self.serving()?);
        }
        Ok(configuration)
    }

    /// A joined node serves with a certificate of the cluster's CA and delegates authentication and
    /// authorization to the API server.
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
    environment: &TestEnvironment,
    node: &str,
    command: &[OsString],
    variables: &[(OsString, OsString)],
) -> Result<Daemon> {
    let (program, arguments) =
        command.split_first().context("the agent's command line is empty")?;
    let mut command = environment.command(program);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    environment.daemon(node, command)
}

impl Agent {
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The `cgroupRoot` setting.
    pub fn cgroup_root(&self) -> &str {
        &self.cgroup_root
    }

    /// The `--root-dir` flag.
    pub fn root_dir(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// The `podLogsDir` setting.
    pub fn pod_logs(&self) -> PathBuf {
        self.directory.join("pod-logs")
    }

    /// The log directories of pods, without those of bystanders.
    pub fn log_directories(&self) -> Result<Vec<PathBuf>> {
        entries(&self.pod_logs())
    }

    /// The directories of pods, without those of bystanders.
    pub fn pod_directories(&self) -> Result<Vec<PathBuf>> {
        entries(&self.root_dir().join("pods"))
    }

    /// Directory of the log links that upstream puts into /var/log/containers.
    pub fn log_links(&self) -> PathBuf {
        self.directory.join("containers")
    }

    /// The `staticPodPath` setting.
    pub fn manifests(&self) -> PathBuf {
        self.directory.join("manifests")
    }

    /// The `--cert-dir` flag.
    pub fn certificates(&self) -> PathBuf {
        self.directory.join("certificates")
    }

    /// The configuration file.
    pub fn configuration(&self) -> PathBuf {
        self.directory.join("config.yaml")
    }

    /// Base URL of the kubelet server, inside the namespace.
    pub fn url(&self) -> String {
        format!("https://{NODE_ADDRESS}:{}", self.ports.api)
    }

    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Writes a static pod manifest atomically.
    pub fn add_manifest(&self, name: &str, pod: &Value) -> Result<PathBuf> {
        let part = self.directory.join(format!("{name}.part"));
        let path = self.manifests().join(format!("{name}.json"));
        fs::write(&part, serde_json::to_vec(pod)?)?;
        fs::rename(&part, &path).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Waits until `/healthz` returns a success status.
    pub async fn healthy(&self) -> Result<()> {
        let healthy = async || {
            let url = format!("http://127.0.0.1:{}/healthz", self.ports.healthz);
            let request = Request::get(url).body(Default::default())?;
            let response = send(self.environment.netns(), request, &Tls::default()).await?;
            Ok(response.status.is_success().then_some(()))
        };
        self.daemon.until("the agent to be healthy", START, healthy).await
    }

    /// Sends SIGKILL, whatever the agent is doing.
    pub async fn kill(&self) -> Result<ExitStatus> {
        self.daemon.kill().await
    }

    /// Sends SIGTERM, and SIGKILL after the grace period.
    pub async fn stop(&self) -> Result<ExitStatus> {
        self.daemon.stop(GRACE).await
    }

    /// Starts another build of the program with the same arguments and directories, after this one
    /// was killed or stopped; the log is continued.
    pub async fn restart_as(&mut self, program: &Path) -> Result<()> {
        let first = self.command.first_mut().context("the agent's command line is empty")?;
        *first = program.as_os_str().to_owned();
        self.restart().await
    }

    /// Starts the same command again after it was killed or stopped; the log is continued.
    pub async fn restart(&mut self) -> Result<()> {
        self.daemon.kill().await?;
        self.daemon = launch(&self.environment, &self.node, &self.command, &self.variables)?;
        Ok(())
    }
}

/// The entries of a directory, without bystanders.
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
