//! HTTP connection handling shared by the kubelet server and the embedded API server.
//!
//! Both servers accept connections from unauthenticated clients. Before the first request and after
//! the last response, a connection must cost little and must not stay open for ever: [`serve_http`]
//! closes idle ones, and [`ConnectionLimiter`] limits how many one client can hold, and how many and
//! how long without credentials. Authentication and request handling are up to the servers.

mod connection;
mod connection_limiter;
mod idle;
mod unread;

pub use connection::{HEADER_TIMEOUT, HttpVersion, MAX_HEADER_BYTES, keep_alive, serve_http};
pub use connection_limiter::{
    AUTHENTICATION_TIMEOUT, ConnectionLimiter, ConnectionLimits, ConnectionPermit, CredentialCheck,
};
pub use idle::TrackedBody;
pub use unread::UnreadLimit;
