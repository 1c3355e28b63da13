//! The server: a store, what it takes from outside, and the handle that everything hangs on.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Ids};
use crate::connect::PodConnector;
use crate::controllers::ClaimDirectories;
use crate::status::ApiError;
use crate::store::{Store, StoreError};
use crate::tokens::TokenKey;

/// Everything that differs between a test, the simulator and `podwright up`.
#[derive(Clone)]
pub struct Settings {
    pub clock: Clock,
    pub ids: Ids,
    /// The certificates that pods verify this server with, as PEM.
    pub root_ca: String,
    /// Where pods find this server: the address of the `kubernetes` service. Without one, there is
    /// no such service, and pods hear nothing of this server.
    pub service: Option<SocketAddr>,
    /// Carries logs, exec, attach and port-forward to the node; without it they are not served.
    pub pod_connector: Option<Arc<dyn PodConnector>>,
    /// Where the folders of claims are; without it a claim waits for a volume that somebody makes.
    pub volumes: Option<ClaimDirectories>,
    /// Signs the tokens of service accounts; without it none are issued.
    pub token_key: Option<TokenKey>,
}

impl Settings {
    pub fn new(clock: Clock, ids: Ids) -> Self {
        Self {
            clock,
            ids,
            root_ca: String::new(),
            service: Some(SocketAddr::from(([10, 96, 0, 1], 443))),
            pod_connector: None,
            volumes: None,
            token_key: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("service", &self.service).finish_non_exhaustive()
    }
}

/// The embedded API server. Cheap to clone; every clone is the same server.
#[derive(Clone, Debug)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    settings: Settings,
    stop: CancellationToken,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write the objects that every cluster has: {0}")]
    Bootstrap(#[from] ApiError),
}

impl ApiServer {
    /// Opens for business: afterwards the default namespaces and their contents exist.
    pub async fn start(store: Store, settings: Settings) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let server = Self { inner: Arc::new(Inner { store, settings, stop }) };
        server.bootstrap().await?;
        Ok(server)
    }

    /// Ends open watches, so that connections can close.
    pub fn stop(&self) {
        self.inner.stop.cancel();
    }

    pub(crate) fn stopped(&self) -> CancellationToken {
        self.inner.stop.clone()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn ids(&self) -> &Ids {
        &self.inner.settings.ids
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.inner.settings.clock.now()
    }
}
