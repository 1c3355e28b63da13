//! Test bed: the real components that one test runs on.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use hyper::body::Bytes;

use crate::agent::AgentBuilder;
use crate::bystanders::Bystanders;
use crate::containerd::{self, Containerd};
use crate::control_plane::{ControlPlane, ControlPlaneOptions};
use crate::cri::Cri;
use crate::environment::TestEnvironment;
use crate::http::{HttpResponse, Tls, send};
use crate::kubectl::{self, Kubectl};
use crate::netns::{Host, NetNs};
use crate::process::Daemon;

const POD_SUBNET: &str = "10.88.0.0/16";

/// A real containerd and optionally a real control plane, each in a [`TestEnvironment`],
/// surrounded by [bystanders](crate::bystanders). On drop, everything is removed before the drop returns; if the
/// process is killed, shortly after. A case ends it with [`Bed::close`], which also verifies the
/// bystanders.
pub struct Bed {
    // Fields are dropped in this order: the test environment last.
    closing: MustClose,
    plane: Option<ControlPlane>,
    containerd: Containerd,
    bystanders: Option<Bystanders>,
    environment: Arc<TestEnvironment>,
}

/// Enforces [`Bed::close`]: panics on drop unless disarmed or already panicking.
struct MustClose {
    id: String,
    armed: bool,
}

impl Drop for MustClose {
    #[allow(clippy::panic, reason = "a case that does not verify its bystanders is a failed case")]
    fn drop(&mut self) {
        if self.armed && !std::thread::panicking() {
            panic!(
                "bed {} was dropped without being closed, so its bystanders were not verified: \
                 end the case with Bed::close(). If the case returned an error first, that is \
                 the cause",
                self.id
            );
        }
    }
}

#[derive(Default)]
pub struct BedBuilder {
    release: Option<containerd::Release>,
    pod_subnet: Option<String>,
    plane: Option<ControlPlaneOptions>,
    unwatched: bool,
}

impl BedBuilder {
    /// Uses this containerd release instead of the one in `PODWRIGHT_CONTAINERD`.
    pub fn containerd(mut self, release: containerd::Release) -> Self {
        self.release = Some(release);
        self
    }

    /// The subnet of pod addresses; 10.88.0.0/16 by default.
    pub fn pod_subnet(mut self, subnet: &str) -> Self {
        self.pod_subnet = Some(subnet.to_owned());
        self
    }

    /// Adds etcd, kube-apiserver and kube-controller-manager.
    pub fn control_plane(mut self) -> Self {
        self.plane.get_or_insert_default();
        self
    }

    /// Adds a control plane that no other bed has used, so that its past activity can be measured.
    pub fn fresh_control_plane(mut self) -> Self {
        self.plane.get_or_insert_default().fresh = true;
        self
    }

    /// Runs controllers beyond those for nodes and service accounts, such as `replicaset`.
    pub fn controllers(mut self, names: &[&str]) -> Self {
        let names = names.iter().map(|&name| name.to_owned());
        self.plane.get_or_insert_default().controllers.extend(names);
        self
    }

    /// Validity of certificates issued to nodes from the time of issue. They are also backdated by
    /// five minutes.
    pub fn certificates_for(mut self, duration: Duration) -> Self {
        self.plane.get_or_insert_default().certificates_for = Some(duration);
        self
    }

    /// Adds a flag for the API server, such as `--feature-gates=…`.
    pub fn apiserver_flag(mut self, flag: &str) -> Self {
        self.plane.get_or_insert_default().apiserver_flags.push(flag.to_owned());
        self
    }

    /// No bystanders, and no need to close the bed: for measurements, which must not include
    /// bystanders.
    pub fn without_bystanders(mut self) -> Self {
        self.unwatched = true;
        self
    }

    pub async fn start(self) -> Result<Bed> {
        let release = match self.release {
            Some(release) => release,
            None => containerd::Release::from_environment()?,
        };
        let environment = Arc::new(TestEnvironment::create(Host::Node).await?);
        let subnet = self.pod_subnet.as_deref().unwrap_or(POD_SUBNET);
        let creating = async {
            if self.unwatched {
                return Ok(None);
            }
            let environment = environment.clone();
            tokio::task::spawn_blocking(move || Bystanders::create(&environment).map(Some)).await?
        };
        let starting = Containerd::start(environment.clone(), release, subnet);
        let (containerd, bystanders) = tokio::try_join!(starting, creating)?;
        let plane = match self.plane {
            Some(options) => Some(ControlPlane::provide(options, environment.netns()).await?),
            None => None,
        };
        let closing = MustClose { id: environment.id().to_owned(), armed: !self.unwatched };
        Ok(Bed { closing, plane, containerd, bystanders, environment })
    }
}

impl Bed {
    pub fn builder() -> BedBuilder {
        BedBuilder::default()
    }

    /// Unique on this machine.
    pub fn id(&self) -> &str {
        self.environment.id()
    }

    pub fn environment(&self) -> &Arc<TestEnvironment> {
        &self.environment
    }

    /// The bystanders around the node, if the bed has them.
    pub fn bystanders(&self) -> Option<&Bystanders> {
        self.bystanders.as_ref()
    }

    /// A path below the bed's directory.
    pub fn path(&self, below: &str) -> PathBuf {
        self.environment.path(below)
    }

    pub fn netns(&self) -> &NetNs {
        self.environment.netns()
    }

    /// Another machine on the node's network, which sends packets for all other addresses to the
    /// node. Only for a bed without a control plane, which has the same address.
    pub fn neighbour(&self) -> Result<NetNs> {
        let neighbour = NetNs::create(self.path("neighbour"), Host::ControlPlane)?;
        self.netns().plug_into(&neighbour)?;
        Ok(neighbour)
    }

    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    pub fn containerd_mut(&mut self) -> &mut Containerd {
        &mut self.containerd
    }

    /// The control plane; an error if the bed was built without one.
    pub fn control_plane(&self) -> Result<&ControlPlane> {
        self.plane.as_ref().context("this bed has no control plane: Bed::builder().control_plane()")
    }

    pub fn control_plane_mut(&mut self) -> Result<&mut ControlPlane> {
        self.plane.as_mut().context("this bed has no control plane: Bed::builder().control_plane()")
    }

    /// An API client with cluster-admin rights.
    pub async fn client(&self) -> Result<kube::Client> {
        self.control_plane()?.admin().await
    }

    /// Builder of the bed's kubelet.
    pub fn agent(&self, node: &str) -> AgentBuilder<'_> {
        AgentBuilder::new(self, node)
    }

    /// kubectl as cluster administrator.
    pub fn kubectl(&self, release: kubectl::Release) -> Result<Kubectl> {
        self.kubectl_with(release, self.control_plane()?.admin_kubeconfig())
    }

    /// kubectl with any kubeconfig, such as one that `podwright up` wrote.
    pub fn kubectl_with(&self, release: kubectl::Release, kubeconfig: PathBuf) -> Result<Kubectl> {
        Kubectl::new(self.environment.clone(), release, kubeconfig)
    }

    /// A direct CRI client of the runtime, without an agent.
    pub async fn cri(&self) -> Result<Cri> {
        let cgroup = self.environment.cgroup().child("bare")?;
        Cri::connect(&self.containerd.socket(), cgroup, &self.path("bare-logs")).await
    }

    /// A command that runs inside the bed and ends with it.
    pub fn command(&self, program: &str) -> Command {
        self.environment.command(program)
    }

    /// Runs a command inside to completion and returns its output.
    pub async fn exec(&self, command: &[&str]) -> Result<String> {
        let (program, arguments) = command.split_first().context("the command is empty")?;
        let mut command = self.command(program);
        command.args(arguments);
        self.environment.run(command).await
    }

    /// Starts a program inside; its log is `logs/NAME.log` in the bed's directory.
    pub fn daemon(&self, name: &str, command: Command) -> Result<Daemon> {
        self.environment.daemon(name, command)
    }

    /// Sends a GET from inside the bed; over HTTPS any server certificate is accepted and no client
    /// certificate is sent.
    pub async fn http_get(&self, url: &str) -> Result<HttpResponse> {
        let request = Request::get(url).body(Bytes::new()).with_context(|| url.to_owned())?;
        self.http_send(request, &Tls::default()).await
    }

    /// Sends a request from inside the bed.
    pub async fn http_send(&self, request: Request<Bytes>, tls: &Tls) -> Result<HttpResponse> {
        send(self.netns(), request, tls).await
    }

    /// Verifies the bystanders and removes the bed; fails if anything could not be removed. Agents
    /// must be dropped before.
    pub fn close(self) -> Result<()> {
        let Self { mut closing, plane, containerd, bystanders, environment } = self;
        closing.armed = false;
        let untouched = bystanders.as_ref().map_or(Ok(()), Bystanders::verify);
        if untouched.is_err() {
            // The logs explain the failure; an error while keeping them must not hide it.
            let _ = environment.keep_logs();
        }
        drop(bystanders);
        drop(containerd);
        let environment = Arc::into_inner(environment);
        let left = environment.context("an agent still uses this bed; drop it first");
        let left = left.and_then(|mut environment| environment.remove());
        untouched?;
        left?;
        if let Some(plane) = plane {
            plane.keep_for_reuse();
        }
        Ok(())
    }
}
