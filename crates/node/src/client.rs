//! Clients: connections and certificates for the API server, HTTP requests to containers.

pub mod certificates;
pub mod connection;
pub mod http_get;
mod kubeconfig_file;
pub mod proxy;
pub mod request_rate;
pub mod request_timeout;
pub mod system_roots;
