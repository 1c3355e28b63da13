//! Podwright's embedded API server, served inside a bed.
//!
//! It supports the fields of the current release, which the kube-apiserver built from Debian's
//! sources does not: sidecars, the resize and ephemeral container subresources, and observed
//! generations in a status.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bed::Bed;
use crate::kubeconfig::save;
use crate::netns::NODE_ADDRESS;

const PORT: u16 = 6443;

/// The server and its controllers; stopped on drop.
pub struct Embedded {
    server: ApiServer,
    kubeconfig: PathBuf,
    _running: DropGuard,
}

impl Embedded {
    /// Serves plain HTTP at the node's address, reachable only inside the bed.
    pub async fn start(bed: &Bed) -> Result<Self> {
        let clock = Clock::system();
        let store = Store::in_memory(Limits::default(), clock.clone())?;
        let mut settings = Settings::new(clock, Ids::system());
        settings.root_ca = "no certificate: this server is only reachable inside its bed\n".into();
        settings.token_key = Some(TokenKey::new(&[7; 32]));
        let server = ApiServer::start(store, settings).await?;
        let address = SocketAddr::from((NODE_ADDRESS, PORT));
        let listener = bed.netns().listen(address).await.context("listening inside the bed")?;
        let stop = CancellationToken::new();
        let (serving, router) = (stop.clone(), server.service(Identity::admin()));
        tokio::spawn(async move {
            let end = axum::serve(listener, router).into_future();
            serving.run_until_cancelled(end).await
        });
        let (controllers, token) = (server.clone(), stop.clone());
        tokio::spawn(async move { controllers.run_controllers(token).await });
        let kubeconfig = bed.path("embedded.kubeconfig");
        save(&kubeconfig, &document(address))?;
        Ok(Self { server, kubeconfig, _running: stop.drop_guard() })
    }

    /// For [`crate::agent::AgentBuilder::kubeconfig`].
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client with every right that does not use the network.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.server.service(Identity::admin()), "default")
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.server.stop();
    }
}

fn document(address: SocketAddr) -> String {
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "bed", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "user", "user": {} }],
        "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "user" } }],
        "current-context": "bed",
    });
    format!("{document:#}\n")
}
