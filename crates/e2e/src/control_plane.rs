//! A real control plane: etcd, kube-apiserver and kube-controller-manager, with the access rules of
//! a real cluster, on a host of its own. There is no scheduler: tests set `spec.nodeName`.

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

use crate::audit::{self, Audited};
use crate::cell;
use crate::ground::Ground;
use crate::http::{Tls, send};
use crate::kubeconfig::{self, Credential};
use crate::netns::{CONTROL_PLANE_ADDRESS, Host, NetNs};
use crate::pki::{Authority, PairFiles};
use crate::process::Daemon;
use crate::store::{Kept, Store};
use crate::tools::provide;

/// The API server compiles its schema at every start, and two cores may serve several of them.
const START: Duration = Duration::from_secs(120);

/// How long one that was used before may take to say that it is well.
const WELL: Duration = Duration::from_secs(10);

const ETCD: &str = "http://127.0.0.1:2379";
const API_PORT: u16 = 6443;
const AUDIT_LOG: &str = "logs/audit.json";
const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// What the token of a bootstrap kubeconfig is.
const BOOTSTRAP_TOKEN: (&str, &str) = ("podwri", "0123456789abcdef");

/// Under their old names, which the current release takes as well.
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

/// Those whose beds have gone. To start one takes several seconds of both cores, most of what a
/// case needs; to put one back to how it began takes none. What is left of them at the end of the
/// program goes with their guardians.
static SPARE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

/// What may differ from bed to bed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// Never another bed's, before or after.
    pub(crate) fresh: bool,
    pub(crate) controllers: Vec<String>,
    pub(crate) certificates_for: Option<Duration>,
    pub(crate) apiserver_flags: Vec<String>,
}

impl Wishes {
    fn none(&self) -> bool {
        *self == Self::default()
    }
}

pub struct ControlPlane {
    wishes: Wishes,
    authority: Authority,
    /// What was in its store when it began.
    kept: Kept,
    /// Dropped in this order: who depends on the others first.
    controller_manager: Daemon,
    apiserver: Daemon,
    etcd: Daemon,
    ground: Ground,
}

impl ControlPlane {
    /// One as if it had just begun, joined to the node in `netns`.
    pub(crate) async fn provide(wishes: Wishes, netns: &NetNs) -> Result<Self> {
        let plane = match Self::spare(&wishes).await {
            Some(plane) => plane,
            None => Self::start(wishes).await?,
        };
        netns.plug_into(plane.ground.netns())?;
        Ok(plane)
    }

    /// For the next bed. This one's must have gone with all that was on it.
    pub(crate) fn hand_on(self) {
        // A cell ends with its test, guardians and all.
        if self.wishes.none() && !cell::inside() {
            SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }

    #[allow(clippy::print_stderr, reason = "whoever reads a failed test's report wants to know")]
    async fn spare(wishes: &Wishes) -> Option<Self> {
        while wishes.none() {
            let plane = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            match plane.renew().await {
                Ok(()) => return Some(plane),
                Err(error) => eprintln!("a control plane is not used again: {error:#}"),
            }
        }
        None
    }

    /// Puts everything back to how it began.
    async fn renew(&self) -> Result<()> {
        for daemon in [&self.etcd, &self.apiserver, &self.controller_manager] {
            ensure!(daemon.ended()?.is_none(), "{daemon} has ended");
        }
        self.ground.netns().unplug()?;
        ready(&self.ground, &self.apiserver, WELL).await?;
        self.store().put_back(&self.kept).await?;
        audit::forget(&self.audit_log())?;
        self.welcomes_pods("default").await
    }

    async fn start(wishes: Wishes) -> Result<Self> {
        let ground = Ground::claim(Host::ControlPlane).await?;
        let authority = Authority::create(ground.path("pki"))?;
        issue(&ground, &authority)?;
        let etcd = start_etcd(&ground).await?;
        let apiserver = launch_apiserver(&ground, &authority, &wishes)?;
        ready(&ground, &apiserver, START).await?;
        let controller_manager = launch_controller_manager(&ground, &authority, &wishes).await?;
        let kept = Kept::default();
        let mut plane =
            Self { wishes, authority, kept, controller_manager, apiserver, etcd, ground };
        plane.furnish().await?;
        plane.kept = plane.store().keep().await?;
        Ok(plane)
    }

    fn store(&self) -> Store<'_> {
        Store::at(ETCD, self.ground.netns())
    }

    fn audit_log(&self) -> PathBuf {
        self.ground.path(AUDIT_LOG)
    }

    /// Where the API server is, seen from the node.
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

    /// A kubeconfig of a cluster administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        kubeconfig_path(&self.ground, "admin")
    }

    /// A kubeconfig for anyone: `NAME.kubeconfig` in the bed's folder.
    pub fn kubeconfig(&self, name: &str, credential: &Credential) -> Result<PathBuf> {
        save_kubeconfig(&self.ground, &self.authority, name, credential)
    }

    /// A kubeconfig with the client certificate of a node.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let pair = self.authority.client(&format!("system:node:{node}"), &["system:nodes"])?;
        self.kubeconfig(&format!("node-{node}"), &Credential::Certificate(pair))
    }

    /// A kubeconfig with a bootstrap token, which may only ask for a node's client certificate.
    pub fn bootstrap_kubeconfig(&self) -> Result<PathBuf> {
        let (id, secret) = BOOTSTRAP_TOKEN;
        self.kubeconfig("bootstrap", &Credential::Token(format!("{id}.{secret}")))
    }

    /// A client for a kubeconfig; the test itself need not be in the namespace.
    pub async fn client(&self, kubeconfig: &std::path::Path) -> Result<kube::Client> {
        kubeconfig::client(kubeconfig, self.ground.netns()).await
    }

    pub async fn admin(&self) -> Result<kube::Client> {
        self.client(&self.admin_kubeconfig()).await
    }

    /// The minor version of the API server: 20 for 1.20. What it is too old to know, a case skips.
    pub async fn minor_version(&self) -> Result<u32> {
        minor_version(&self.admin().await?).await
    }

    /// Past the API server: `range`, `put` and whatever else etcd can do to keys, as JSON.
    pub async fn ask_etcd(&self, what: &str, body: &Value) -> Result<Value> {
        Ok(serde_json::from_slice(&self.store().ask(what, body).await?)?)
    }

    /// Every request the API server has answered so far, and every watch it has begun.
    pub fn audit(&self) -> Result<Vec<Audited>> {
        audit::read(&self.audit_log())
    }

    /// Takes the API server away.
    pub async fn kill_apiserver(&self) -> Result<()> {
        self.apiserver.kill().await.map(drop)
    }

    /// Brings it back, and waits until it is ready.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.kill_apiserver().await?;
        self.apiserver = launch_apiserver(&self.ground, &self.authority, &self.wishes)?;
        ready(&self.ground, &self.apiserver, START).await
    }

    /// Lets new nodes in, and waits until pods may be made in `default`.
    async fn furnish(&self) -> Result<()> {
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
        self.welcomes_pods("default").await
    }

    /// Makes a namespace and waits until pods may be made in it.
    pub async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.admin().await?);
        let namespace = parsed(json!({ "metadata": { "name": name } }))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        self.welcomes_pods(name).await
    }

    /// Waits until controllers have made what a pod needs: a service account, for old servers its
    /// token, and the authority's certificate.
    async fn welcomes_pods(&self, namespace: &str) -> Result<()> {
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
        let what = format!("pods to be welcome in {namespace}");
        self.controller_manager.until(what, START, welcome).await
    }
}

fn api_url() -> String {
    format!("https://{CONTROL_PLANE_ADDRESS}:{API_PORT}")
}

fn kubeconfig_path(ground: &Ground, name: &str) -> PathBuf {
    ground.path(format!("{name}.kubeconfig"))
}

fn save_kubeconfig(
    ground: &Ground,
    authority: &Authority,
    name: &str,
    credential: &Credential,
) -> Result<PathBuf> {
    let path = kubeconfig_path(ground, name);
    let document = kubeconfig::document(&api_url(), &authority.certificate(), credential);
    kubeconfig::save(&path, &document)?;
    Ok(path)
}

/// Everyone's certificates, keys and kubeconfigs.
fn issue(ground: &Ground, authority: &Authority) -> Result<()> {
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
        save_kubeconfig(ground, authority, name, &Credential::Certificate(pair))?;
    }
    Ok(())
}

async fn start_etcd(ground: &Ground) -> Result<Daemon> {
    let mut command = ground.command(provide("etcd")?.join("etcd"));
    command
        .args(["--name=bed", "--unsafe-no-fsync", "--listen-peer-urls=http://127.0.0.1:2380"])
        .arg(format!("--listen-client-urls={ETCD}"))
        .arg(format!("--advertise-client-urls={ETCD}"))
        .arg(format!("--data-dir={}", ground.path("etcd").display()));
    let etcd = ground.daemon("etcd", command)?;
    let healthy = async || {
        let request = Request::get(format!("{ETCD}/health")).body(Default::default())?;
        let answer = send(ground.netns(), request, &Tls::default()).await?;
        Ok(answer.text().contains("\"true\"").then_some(()))
    };
    etcd.until("etcd to be healthy", START, healthy).await?;
    Ok(etcd)
}

/// Flags that 1.20 and the current release both know.
fn launch_apiserver(ground: &Ground, authority: &Authority, wishes: &Wishes) -> Result<Daemon> {
    let pki = |file: &str| ground.path("pki").join(file);
    let policy = ground.path("audit-policy.yaml");
    std::fs::write(&policy, audit::POLICY)?;
    let mut command = ground.command(provide("kube-apiserver")?.join("kube-apiserver"));
    for (flag, file) in [
        ("audit-log-path", ground.path(AUDIT_LOG)),
        ("audit-policy-file", policy),
        ("cert-dir", ground.path("pki")),
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
            "--audit-log-maxsize=10000", // in MB; one that is full would be another file
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
        ])
        .args(&wishes.apiserver_flags);
    ground.daemon("kube-apiserver", command)
}

/// Waits until the server has made its default roles, which is the last thing it does.
async fn ready(ground: &Ground, apiserver: &Daemon, limit: Duration) -> Result<()> {
    let client = kubeconfig::client(&kubeconfig_path(ground, "admin"), ground.netns()).await?;
    let ready = async || {
        let request = Request::get("/readyz").body(Vec::new())?;
        Ok((client.request_text(request).await? == "ok").then_some(()))
    };
    apiserver.until("the API server to be ready", limit, ready).await
}

async fn minor_version(client: &kube::Client) -> Result<u32> {
    let version = client.apiserver_version().await?;
    let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().with_context(|| format!("the server calls itself {version:?}"))
}

async fn launch_controller_manager(
    ground: &Ground,
    authority: &Authority,
    wishes: &Wishes,
) -> Result<Daemon> {
    let PairFiles { certificate, key } = authority.files();
    let kubeconfig = kubeconfig_path(ground, "controller-manager");
    let program = provide("kube-controller-manager")?.join("kube-controller-manager");
    let mut command = ground.command(program);
    for (flag, file) in [
        ("authentication-kubeconfig", &kubeconfig),
        ("authorization-kubeconfig", &kubeconfig),
        ("cert-dir", &ground.path("pki")),
        ("cluster-signing-cert-file", &certificate),
        ("cluster-signing-key-file", &key),
        ("kubeconfig", &kubeconfig),
        ("root-ca-file", &certificate),
        ("service-account-private-key-file", &ground.path("pki/service-accounts.key")),
    ] {
        command.arg(format!("--{flag}={}", file.display()));
    }
    let controllers = CONTROLLERS.map(str::to_owned).into_iter();
    let controllers: Vec<_> = controllers.chain(wishes.controllers.iter().cloned()).collect();
    command
        .arg("--bind-address=127.0.0.1")
        .arg("--leader-elect=false")
        .arg("--use-service-account-credentials") // each controller in its own role
        .arg(format!("--controllers={}", controllers.join(",")));
    if let Some(duration) = wishes.certificates_for {
        let admin = kubeconfig::client(&kubeconfig_path(ground, "admin"), ground.netns()).await?;
        let minor = minor_version(&admin).await?;
        // Controllers before 1.22 count the five minutes that have passed as part of it.
        let passed = if minor < 22 { Duration::from_secs(300) } else { Duration::ZERO };
        command.arg(format!("--cluster-signing-duration={}s", (duration + passed).as_secs()));
    }
    ground.daemon("kube-controller-manager", command)
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
    serde_json::from_value(object).context("an object of our own")
}
