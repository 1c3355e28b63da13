//! Real control plane: etcd, kube-apiserver and kube-controller-manager, with the access rules of a
//! real cluster, on a separate host. There is no scheduler: tests set `spec.nodeName`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::audit::{self, AuditedRequest};
use crate::environment::TestEnvironment;
use crate::http::{Tls, send};
use crate::isolation;
use crate::kubeconfig::{self, Credential};
use crate::netns::{CONTROL_PLANE_ADDRESS, Host, NetNs};
use crate::pki::{Authority, PairFiles};
use crate::process::Daemon;
use crate::store::{SavedStore, Store};
use crate::tools::provide;

/// The API server compiles its schema at every start, and two cores may run several of them.
const START: Duration = Duration::from_secs(120);

/// Time limit for a reused control plane to report ready.
const REUSE_LIMIT: Duration = Duration::from_secs(10);

const ETCD: &str = "http://127.0.0.1:2379";
const API_PORT: u16 = 6443;
const AUDIT_LOG: &str = "logs/audit.json";
const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Id and secret of the bootstrap token.
const BOOTSTRAP_TOKEN: (&str, &str) = ("podwri", "0123456789abcdef");

/// Under their old names, which the current release still accepts.
const CONTROLLERS: [&str; 8] = [
    "csrapproving",
    "csrcleaner",
    "csrsigning",
    "garbagecollector",
    "namespace",
    "root-ca-cert-publisher",
    "serviceaccount",
    "serviceaccount-token",
];

/// Control planes whose beds are closed, kept for reuse. Starting one takes several seconds of both
/// cores, most of the time of a case; resetting one takes almost none. Those left at the end of the
/// process are removed by their cleanup processes.
static SPARE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

/// What may differ from bed to bed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlPlaneOptions {
    /// Not shared with another bed, before or after.
    pub(crate) fresh: bool,
    pub(crate) controllers: Vec<String>,
    pub(crate) certificates_for: Option<Duration>,
    pub(crate) apiserver_flags: Vec<String>,
}

impl ControlPlaneOptions {
    fn none(&self) -> bool {
        *self == Self::default()
    }
}

pub struct ControlPlane {
    options: ControlPlaneOptions,
    authority: Authority,
    /// Content of its store right after the start.
    kept: SavedStore,
    /// Dropped in this order: dependents first.
    controller_manager: Daemon,
    apiserver: Daemon,
    etcd: Daemon,
    environment: TestEnvironment,
}

impl ControlPlane {
    /// A control plane in its initial state, connected to the node in `netns`.
    pub(crate) async fn provide(options: ControlPlaneOptions, netns: &NetNs) -> Result<Self> {
        let plane = match Self::spare(&options).await {
            Some(plane) => plane,
            None => Self::start(options).await?,
        };
        netns.plug_into(plane.environment.netns())?;
        Ok(plane)
    }

    /// Keeps it for the next bed. The current bed must be closed.
    pub(crate) fn keep_for_reuse(self) {
        // An isolated environment ends with its test, including cleanup processes.
        if self.options.none() && !isolation::inside() {
            SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }

    #[allow(clippy::print_stderr, reason = "part of the report of a failed test")]
    async fn spare(options: &ControlPlaneOptions) -> Option<Self> {
        while options.none() {
            let plane = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            match plane.reset().await {
                Ok(()) => return Some(plane),
                Err(error) => eprintln!("cannot reuse a control plane: {error:#}"),
            }
        }
        None
    }

    /// Resets everything to the initial state.
    async fn reset(&self) -> Result<()> {
        for daemon in [&self.etcd, &self.apiserver, &self.controller_manager] {
            ensure!(daemon.ended()?.is_none(), "{daemon} has ended");
        }
        self.environment.netns().unplug()?;
        ready(&self.environment, &self.apiserver, REUSE_LIMIT).await?;
        self.store().put_back(&self.kept).await?;
        audit::truncate(&self.audit_log())?;
        self.until_pods_accepted("default").await
    }

    async fn start(options: ControlPlaneOptions) -> Result<Self> {
        let environment = TestEnvironment::create(Host::ControlPlane).await?;
        let authority = Authority::create(environment.path("pki"))?;
        issue(&environment, &authority)?;
        let etcd = start_etcd(&environment).await?;
        let apiserver = launch_apiserver(&environment, &authority, &options)?;
        ready(&environment, &apiserver, START).await?;
        let controller_manager =
            launch_controller_manager(&environment, &authority, &options).await?;
        let kept = SavedStore::default();
        let mut plane =
            Self { options, authority, kept, controller_manager, apiserver, etcd, environment };
        plane.set_up_cluster().await?;
        plane.kept = plane.store().keep().await?;
        Ok(plane)
    }

    fn store(&self) -> Store<'_> {
        Store::at(ETCD, self.environment.netns())
    }

    fn audit_log(&self) -> PathBuf {
        self.environment.path(AUDIT_LOG)
    }

    /// URL of the API server, as seen from the node.
    pub fn url(&self) -> String {
        api_url()
    }

    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    pub fn etcd(&self) -> &Daemon {
        &self.etcd
    }

    pub fn apiserver(&self) -> &Daemon {
        &self.apiserver
    }

    pub fn controller_manager(&self) -> &Daemon {
        &self.controller_manager
    }

    /// A cluster administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        kubeconfig_path(&self.environment, "admin")
    }

    /// A kubeconfig for any credential: `NAME.kubeconfig` in the bed's directory.
    pub fn kubeconfig(&self, name: &str, credential: &Credential) -> Result<PathBuf> {
        save_kubeconfig(&self.environment, &self.authority, name, credential)
    }

    /// A kubeconfig with the client certificate of a node.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let pair = self.authority.client(&format!("system:node:{node}"), &["system:nodes"])?;
        self.kubeconfig(&format!("node-{node}"), &Credential::Certificate(pair))
    }

    /// A kubeconfig with a bootstrap token, which may only request a node's client certificate.
    pub fn bootstrap_kubeconfig(&self) -> Result<PathBuf> {
        let (id, secret) = BOOTSTRAP_TOKEN;
        self.kubeconfig("bootstrap", &Credential::Token(format!("{id}.{secret}")))
    }

    /// A client for a kubeconfig; the test itself need not run in the namespace.
    pub async fn client(&self, kubeconfig: &std::path::Path) -> Result<kube::Client> {
        kubeconfig::client(kubeconfig, self.environment.netns()).await
    }

    pub async fn admin(&self) -> Result<kube::Client> {
        self.client(&self.admin_kubeconfig()).await
    }

    /// The minor version of the API server: 20 for 1.20. Cases skip what it is too old for.
    pub async fn minor_version(&self) -> Result<u32> {
        minor_version(&self.admin().await?).await
    }

    /// Sends an etcd request (`range`, `put`, …) as JSON, bypassing the API server.
    pub async fn ask_etcd(&self, what: &str, body: &Value) -> Result<Value> {
        Ok(serde_json::from_slice(&self.store().ask(what, body).await?)?)
    }

    /// Every completed request and every started watch so far.
    pub fn audit(&self) -> Result<Vec<AuditedRequest>> {
        audit::read(&self.audit_log())
    }

    /// Kills the API server.
    pub async fn kill_apiserver(&self) -> Result<()> {
        self.apiserver.kill().await.map(drop)
    }

    /// Starts it again and waits until it is ready.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.kill_apiserver().await?;
        self.apiserver = launch_apiserver(&self.environment, &self.authority, &self.options)?;
        ready(&self.environment, &self.apiserver, START).await
    }

    /// Creates the bindings for new nodes and waits until pods can be created in `default`.
    async fn set_up_cluster(&self) -> Result<()> {
        let client = self.admin().await?;
        let bindings = Api::<ClusterRoleBinding>::all(client.clone());
        for (role, group) in [
            ("system:node-bootstrapper", "system:bootstrappers"),
            (
                "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
                "system:bootstrappers",
            ),
            (
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
                "system:nodes",
            ),
        ] {
            bindings.create(&PostParams::default(), &binding(role, group)?).await?;
        }
        let secrets = Api::<Secret>::namespaced(client.clone(), "kube-system");
        secrets.create(&PostParams::default(), &bootstrap_token()?).await?;
        self.until_pods_accepted("default").await
    }

    /// Creates a namespace and waits until pods can be created in it.
    pub async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.admin().await?);
        let namespace = parsed(json!({ "metadata": { "name": name } }))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        self.until_pods_accepted(name).await
    }

    /// Waits until controllers have created what a pod needs: a service account, its token on old
    /// servers, and the CA's ConfigMap.
    async fn until_pods_accepted(&self, namespace: &str) -> Result<()> {
        let client = self.admin().await?;
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let maps = Api::<ConfigMap>::namespaced(client, namespace);
        let container = json!({ "name": "app", "image": "localhost/none" });
        let pod: Pod = parsed(json!({
            "metadata": { "name": "welcome" },
            "spec": { "containers": [container] },
        }))?;
        let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
        let welcome = async || {
            pods.create(&rehearsal, &pod).await?;
            Ok(maps.get_opt("kube-root-ca.crt").await?.map(drop))
        };
        let what = format!("{namespace} to accept pods");
        self.controller_manager.until(what, START, welcome).await
    }
}

fn api_url() -> String {
    format!("https://{CONTROL_PLANE_ADDRESS}:{API_PORT}")
}

fn kubeconfig_path(environment: &TestEnvironment, name: &str) -> PathBuf {
    environment.path(format!("{name}.kubeconfig"))
}

fn save_kubeconfig(
    environment: &TestEnvironment,
    authority: &Authority,
    name: &str,
    credential: &Credential,
) -> Result<PathBuf> {
    let path = kubeconfig_path(environment, name);
    let document = kubeconfig::document(&api_url(), &authority.certificate(), credential);
    kubeconfig::save(&path, &document)?;
    Ok(path)
}

/// Issues all certificates, keys and kubeconfigs.
fn issue(environment: &TestEnvironment, authority: &Authority) -> Result<()> {
    let names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let addresses = [CONTROL_PLANE_ADDRESS, SERVICE_ADDRESS, Ipv4Addr::LOCALHOST].map(IpAddr::V4);
    let server = authority.server("kube-apiserver", &names, &addresses)?;
    authority.save("apiserver", &server)?;
    let to_kubelets = authority.client("kube-apiserver-kubelet-client", &["system:masters"])?;
    authority.save("apiserver-kubelet-client", &to_kubelets)?;
    authority.signing_key("service-accounts")?;
    for (name, user, group) in [
        ("admin", "kubernetes-admin", "system:masters"),
        ("controller-manager", "system:kube-controller-manager", "system:authenticated"),
    ] {
        let pair = authority.client(user, &[group])?;
        save_kubeconfig(environment, authority, name, &Credential::Certificate(pair))?;
    }
    Ok(())
}

async fn start_etcd(environment: &TestEnvironment) -> Result<Daemon> {
    let mut command = environment.command(provide("etcd")?.join("etcd"));
    command
        .args(["--name=bed", "--unsafe-no-fsync", "--listen-peer-urls=http://127.0.0.1:2380"])
        .arg(format!("--listen-client-urls={ETCD}"))
        .arg(format!("--advertise-client-urls={ETCD}"))
        .arg(format!("--data-dir={}", environment.path("etcd").display()));
    let etcd = environment.daemon("etcd", command)?;
    let healthy = async || {
        let request = Request::get(format!("{ETCD}/health")).body(Default::default())?;
        let response = send(environment.netns(), request, &Tls::default()).await?;
        Ok(response.text().contains("\"true\"").then_some(()))
    };
    etcd.until("etcd to be healthy", START, healthy).await?;
    Ok(etcd)
}

/// Uses flags that 1.20 and the current release both know.
fn launch_apiserver(
    environment: &TestEnvironment,
    authority: &Authority,
    options: &ControlPlaneOptions,
) -> Result<Daemon> {
    let pki = |file: &str| environment.path("pki").join(file);
    let policy = environment.path("audit-policy.yaml");
    std::fs::write(&policy, audit::POLICY)?;
    let mut command = environment.command(provide("kube-apiserver")?.join("kube-apiserver"));
    for (flag, file) in [
        ("audit-log-path", environment.path(AUDIT_LOG)),
        ("audit-policy-file", policy),
        ("cert-dir", environment.path("pki")),
        ("client-ca-file", authority.files().certificate),
        ("kubelet-client-certificate", pki("apiserver-kubelet-client.crt")),
        ("kubelet-client-key", pki("apiserver-kubelet-client.key")),
        ("service-account-key-file", pki("service-accounts.pub")),
        ("service-account-signing-key-file", pki("service-accounts.key")),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
    ] {
        command.arg(format!("--{flag}={}", file.display()));
    }
    command
        .arg(format!("--etcd-servers={ETCD}"))
        .arg(format!("--secure-port={API_PORT}"))
        .arg(format!("--advertise-address={CONTROL_PLANE_ADDRESS}"))
        .args([
            "--allow-privileged",
            "--audit-log-maxsize=10000", // in MB; prevents rotation into another file
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
        ])
        .args(&options.apiserver_flags);
    environment.daemon("kube-apiserver", command)
}

/// Waits until the server has created its default roles, the last step of its start.
async fn ready(environment: &TestEnvironment, apiserver: &Daemon, limit: Duration) -> Result<()> {
    let client =
        kubeconfig::client(&kubeconfig_path(environment, "admin"), environment.netns()).await?;
    let ready = async || {
        let request = Request::get("/readyz").body(Vec::new())?;
        Ok((client.request_text(request).await? == "ok").then_some(()))
    };
    apiserver.until("the API server to be ready", limit, ready).await
}

async fn minor_version(client: &kube::Client) -> Result<u32> {
    let version = client.apiserver_version().await?;
    let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().with_context(|| format!("parsing the server version {version:?}"))
}

async fn launch_controller_manager(
    environment: &TestEnvironment,
    authority: &Authority,
    options: &ControlPlaneOptions,
) -> Result<Daemon> {
    let PairFiles { certificate, key } = authority.files();
    let kubeconfig = kubeconfig_path(environment, "controller-manager");
    let program = provide("kube-controller-manager")?.join("kube-controller-manager");
    let mut command = environment.command(program);
    for (flag, file) in [
        ("authentication-kubeconfig", &kubeconfig),
        ("authorization-kubeconfig", &kubeconfig),
        ("cert-dir", &environment.path("pki")),
        ("cluster-signing-cert-file", &certificate),
        ("cluster-signing-key-file", &key),
        ("kubeconfig", &kubeconfig),
        ("root-ca-file", &certificate),
        ("service-account-private-key-file", &environment.path("pki/service-accounts.key")),
    ] {
        command.arg(format!("--{flag}={}", file.display()));
    }
    let controllers = CONTROLLERS.map(str::to_owned).into_iter();
    let controllers: Vec<_> = controllers.chain(options.controllers.iter().cloned()).collect();
    command
        .arg("--bind-address=127.0.0.1")
        .arg("--leader-elect=false")
        .arg("--use-service-account-credentials") // a separate role for each controller
        .arg(format!("--controllers={}", controllers.join(",")));
    if let Some(duration) = options.certificates_for {
        let admin =
            kubeconfig::client(&kubeconfig_path(environment, "admin"), environment.netns()).await?;
        let minor = minor_version(&admin).await?;
        // Controllers before 1.22 subtract the five minutes of backdating.
        let passed = if minor < 22 { Duration::from_secs(300) } else { Duration::ZERO };
        command.arg(format!("--cluster-signing-duration={}s", (duration + passed).as_secs()));
    }
    environment.daemon("kube-controller-manager", command)
}

fn binding(role: &str, group: &str) -> Result<ClusterRoleBinding> {
    let object = json!({
        "metadata": { "name": format!("bed:{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group },
        ],
    });
    parsed(object)
}

fn bootstrap_token() -> Result<Secret> {
    let (id, secret) = BOOTSTRAP_TOKEN;
    parsed(json!({
        "metadata": { "name": format!("bootstrap-token-{id}") },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
        },
    }))
}

fn parsed<T: serde::de::DeserializeOwned>(object: Value) -> Result<T> {
    serde_json::from_value(object).context("parsing a built-in object")
}
