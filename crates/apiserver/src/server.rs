//! The server: its store, its settings, and the shared handle to both.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::access::policy::PolicyCache;
use crate::clock::{Clock, Ids};
use crate::connect::NodeConnector;
use crate::controllers::ClaimDirectories;
use crate::status::ApiError;
use crate::store::{Store, StoreError};
use crate::tokens::TokenKey;

/// Settings that differ between tests, the simulator and `podwright up`.
#[derive(Clone)]
pub struct Settings {
    pub clock: Clock,
    pub ids: Ids,
    /// CA certificates with which pods verify this server, as PEM.
    pub root_ca: String,
    /// Address of the `kubernetes` service, where pods reach this server. Without one, there is no
    /// such service and pods get no environment variables for it.
    pub service: Option<SocketAddr>,
    /// Connects logs, exec, attach, port-forward and resource metrics to the node; without it they
    /// are not served.
    pub node_connector: Option<Arc<dyn NodeConnector>>,
    /// Directories for claims; without it a claim waits for a volume that a user creates.
    pub volumes: Option<ClaimDirectories>,
    /// Signs service account tokens; without it none are issued.
    pub token_key: Option<TokenKey>,
}

impl Settings {
    pub fn new(clock: Clock, ids: Ids) -> Self {
        Self {
            clock,
            ids,
            root_ca: String::new(),
            service: Some(SocketAddr::from(([10, 96, 0, 1], 443))),
            node_connector: None,
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
    policy: PolicyCache,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot create the built-in objects: {0}")]
    Bootstrap(#[from] ApiError),
}

impl ApiServer {
    /// Starts the server; afterwards the default namespaces and their contents exist.
    pub async fn start(store: Store, settings: Settings) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let server = Self {
            inner: Arc::new(Inner { store, settings, stop, policy: PolicyCache::default() }),
        };
        server.bootstrap().await?;
        Ok(server)
    }

    /// Writes the objects, as of one moment, to a new database file, for a backup. Blocks.
    pub fn copy_objects(&self, path: &Path) -> Result<(), StoreError> {
        self.inner.store.copy_to(path)
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

    pub(crate) fn policy_cache(&self) -> &PolicyCache {
        &self.inner.policy
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
