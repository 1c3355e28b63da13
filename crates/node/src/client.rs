//! Clients: connections and certificates for the API server, HTTP requests to containers.

pub mod certificates;
pub mod connection;
pub(crate) mod connection_tasks;
pub mod http_get;
mod kubeconfig_file;
pub mod proxy;
pub mod request_rate;
pub mod request_timeout;
pub mod system_roots;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod test_server;
