//! Clients: connections and certificates for the API server, HTTP requests to containers.

pub mod certificates;
pub mod connection;
pub mod http_get;
pub mod request_timeout;
