//! Rules for objects of the Kubernetes API, as pure functions.
//!
//! This crate reads no clock, file, environment variable or socket. The embedded API server and
//! the agent share it: a static pod never passes an API server, and a pod of a newer server has
//! fields that this agent does not know. `clippy.toml` in this crate enforces the rule.
//!
//! - which fields a kind has, and how they are decoded, compared and merged: [`schema`]
//! - who owns which field, and server-side apply: [`managed_fields`]
//! - what is filled in where a pod leaves a field out: [`defaults`]
//! - which objects are refused, with which messages: [`validation`]
//! - amounts: [`quantity`]; totals of a pod and its class: [`qos`]
//! - names of images: [`image_name`]
//! - who may do what: [`rbac`]; which pods a namespace allows: [`pod_security`]

pub mod annotations;
pub mod defaults;
pub mod image_name;
pub mod managed_fields;
pub mod pod_security;
pub mod qos;
pub mod quantity;
pub mod rbac;
pub mod schema;
pub mod validation;
