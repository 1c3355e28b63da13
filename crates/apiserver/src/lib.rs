//! Embedded API server: the Kubernetes API for one machine, in one process.
//!
//! `podwright up` serves it to `kubectl`, and the node's simulation tests use it: the same server
//! either way, reached through HTTPS or, in-process, as a [`tower::Service`] for a `kube::Client`
//! ([`ApiServer::service`]).
//!
//! Read it in the order of a request: [`router`] -> [`request`] (request info) -> [`access`]
//! (authorization) -> [`decode`] -> [`rest`] (verbs) -> [`store`] -> [`watch`]. What is specific to
//! a kind is in [`registry`], [`strategy`], [`admission`], [`defaults`] and [`validation`].

pub mod access;
pub mod admission;
pub mod authority;
pub mod clock;
pub mod connect;
pub mod controllers;
pub mod decode;
pub mod defaults;
pub mod discovery;
pub mod document;
pub mod encode;
pub mod events;
mod in_flight;
pub mod json_edit;
mod metrics;
pub mod negotiate;
pub mod object;
pub mod openapi;
pub mod options;
mod ownership;
pub mod patch;
pub mod protobuf;
pub mod registry;
pub mod request;
pub mod rest;
pub mod review;
pub mod router;
pub mod selector;
pub mod serve;
pub mod server;
pub mod status;
pub mod store;
pub mod strategy;
pub mod table;
pub mod tokens;
pub mod unserved;
pub mod validation;
pub mod watch;

pub use access::Identity;
pub use authority::Authority;
pub use clock::{Clock, Ids};
pub use connect::NodeConnector;
pub use controllers::{ClaimDirectories, ReclaimDirectory};
pub use serve::Peers;
pub use server::{ApiServer, Settings};
pub use store::{Limits, Store, StoreError};
