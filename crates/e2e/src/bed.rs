//! A bed: one machine's worth of real parts for one test.

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
use crate::control_plane::{ControlPlane, Wishes};
use crate::cri::Cri;
use crate::ground::Ground;
use crate::http::{Answer, Tls, send};
use crate::kubectl::{self, Kubectl};
use crate::netns::{Host, NetNs};
use crate::process::Daemon;

const POD_SUBNET: &str = "10.88.0.0/16";

/// Real containerd, and if wanted a real control plane, on ground of their own, with
/// [things of a user's own](crate::bystanders) in the way. Dropped, everything is gone when the drop
/// returns; killed, a moment later. A case ends it with [`Bed::close`], which also verifies that
/// nothing of the user's was harmed.
pub struct Bed {
    // Dropped in this order: the ground last.
    closing: MustClose,
    plane: Option<ControlPlane>,
    containerd: Containerd,
    bystanders: Option<Bystanders>,
    ground: Arc<Ground>,
}

/// Makes it impossible to forget [`Bed::close`]: dropped while nothing panics, it panics.
struct MustClose {
    id: String,
    armed: bool,
}

impl Drop for MustClose {
    #[allow(clippy::panic, reason = "a case that does not verify its bystanders is a failed case")]
    fn drop(&mut self) {
        if self.armed && !std::thread::panicking() {
            panic!(
                "bed {} was dropped and not closed, so nothing shows that the node harmed nothing: \
                 end the case with Bed::close(). If the case returned an error before, that is \
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
    plane: Option<Wishes>,
    unwatched: bool,
}

impl BedBuilder {
    /// A given containerd, instead of the one `PODWRIGHT_CONTAINERD` names.
    pub fn containerd(mut self, release: containerd::Release) -> Self {
        self.release = Some(release);
        self
    }

    /// Where pods get their addresses from; by default 10.88.0.0/16.
    pub fn pod_subnet(mut self, subnet: &str) -> Self {
        self.pod_subnet = Some(subnet.to_owned());
        self
    }

    /// With etcd, kube-apiserver and kube-controller-manager.
    pub fn control_plane(mut self) -> Self {
        self.plane.get_or_insert_default();
        self
    }

    /// With one that no other bed had before: what a server did until now may be measured.
    pub fn fresh_control_plane(mut self) -> Self {
        self.plane.get_or_insert_default().fresh = true;
        self
    }

    /// With more controllers than nodes and service accounts need, such as `replicaset`.
    pub fn controllers(mut self, names: &[&str]) -> Self {
        let names = names.iter().map(|&name| name.to_owned());
        self.plane.get_or_insert_default().controllers.extend(names);
        self
    }

    /// How long the certificates that nodes ask for are good from then on. They also were for the
    /// five minutes before.
    pub fn certificates_for(mut self, duration: Duration) -> Self {
        self.plane.get_or_insert_default().certificates_for = Some(duration);
        self
    }

    /// A further flag for the API server, such as `--feature-gates=…`.
    pub fn apiserver_flag(mut self, flag: &str) -> Self {
        self.plane.get_or_insert_default().apiserver_flags.push(flag.to_owned());
        self
    }

    /// Without bystanders, and without the duty to close it: for measurements, which are to see
    /// nothing but the node.
    pub fn without_bystanders(mut self) -> Self {
        self.unwatched = true;
        self
    }

    pub async fn start(self) -> Result<Bed> {
        let release = match self.release {
            Some(release) => release,
            None => containerd::Release::from_environment()?,
        };
        let ground = Arc::new(Ground::claim(Host::Node).await?);
        let subnet = self.pod_subnet.as_deref().unwrap_or(POD_SUBNET);
        let planting = async {
            if self.unwatched {
                return Ok(None);
            }
            let ground = ground.clone();
            tokio::task::spawn_blocking(move || Bystanders::plant(&ground).map(Some)).await?
        };
        let starting = Containerd::start(ground.clone(), release, subnet);
        let (containerd, bystanders) = tokio::try_join!(starting, planting)?;
        let plane = match self.plane {
            Some(wishes) => Some(ControlPlane::provide(wishes, ground.netns()).await?),
            None => None,
        };
        let closing = MustClose { id: ground.id().to_owned(), armed: !self.unwatched };
        Ok(Bed { closing, plane, containerd, bystanders, ground })
    }
}

impl Bed {
    pub fn builder() -> BedBuilder {
        BedBuilder::default()
    }

    /// What tells this bed from all others on the machine.
    pub fn id(&self) -> &str {
        self.ground.id()
    }

    pub fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    /// The things of a user's own that are in the node's way, if the bed has them.
    pub fn bystanders(&self) -> Option<&Bystanders> {
        self.bystanders.as_ref()
    }

    /// A path below the bed's folder.
    pub fn path(&self, below: &str) -> PathBuf {
        self.ground.path(below)
    }

    pub fn netns(&self) -> &NetNs {
        self.ground.netns()
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

    /// A client of the API server with every right.
    pub async fn client(&self) -> Result<kube::Client> {
        self.control_plane()?.admin().await
    }

    /// The bed's kubelet, to be configured and started.
    pub fn agent(&self, node: &str) -> AgentBuilder<'_> {
        AgentBuilder::new(self, node)
    }

    /// kubectl, as administrator of the bed's cluster.
    pub fn kubectl(&self, release: kubectl::Release) -> Result<Kubectl> {
        self.kubectl_with(release, self.control_plane()?.admin_kubeconfig())
    }

    /// kubectl with any kubeconfig, such as one that `podwright up` wrote.
    pub fn kubectl_with(&self, release: kubectl::Release, kubeconfig: PathBuf) -> Result<Kubectl> {
        Kubectl::new(self.ground.clone(), release, kubeconfig)
    }

    /// The runtime, past any agent.
    pub async fn cri(&self) -> Result<Cri> {
        let cgroup = self.ground.cgroup().child("bare")?;
        Cri::connect(&self.containerd.socket(), cgroup, &self.path("bare-logs")).await
    }

    /// A command that runs inside the bed and ends with it.
    pub fn command(&self, program: &str) -> Command {
        self.ground.command(program)
    }

    /// Runs a command inside to its end and returns what it printed.
    pub async fn exec(&self, command: &[&str]) -> Result<String> {
        let (program, arguments) = command.split_first().context("a command has a program")?;
        let mut command = self.command(program);
        command.args(arguments);
        self.ground.run(command).await
    }

    /// Starts a program inside; its log is `logs/NAME.log` in the bed's folder.
    pub fn daemon(&self, name: &str, command: Command) -> Result<Daemon> {
        self.ground.daemon(name, command)
    }

    /// A GET from inside the bed; over HTTPS any certificate is believed and none is shown.
    pub async fn http_get(&self, url: &str) -> Result<Answer> {
        let request = Request::get(url).body(Bytes::new()).with_context(|| url.to_owned())?;
        self.http_send(request, &Tls::default()).await
    }

    /// Any request from inside the bed.
    pub async fn http_send(&self, request: Request<Bytes>, tls: &Tls) -> Result<Answer> {
        send(self.netns(), request, tls).await
    }

    /// Verifies the bystanders, takes the bed down and says whether all of it went. Agents must have
    /// been dropped before.
    pub fn close(self) -> Result<()> {
        let Self { mut closing, plane, containerd, bystanders, ground } = self;
        closing.armed = false;
        let untouched = bystanders.as_ref().map_or(Ok(()), Bystanders::verify);
        if untouched.is_err() {
            // They explain the failure; a failure to keep them must not hide it.
            let _ = ground.keep_logs();
        }
        drop(bystanders);
        drop(containerd);
        let ground = Arc::into_inner(ground);
        let left = ground.context("an agent still stands on this bed: drop it first");
        let left = left.and_then(|mut ground| ground.leave());
        untouched?;
        left?;
        if let Some(plane) = plane {
            plane.hand_on();
        }
        Ok(())
    }
}
