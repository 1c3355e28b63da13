//! The `podwright` program: command line, configuration, node agent and standalone node.
//!
//! A library with a minimal binary, so that tests, man pages and the end-to-end suite use the same
//! code as the command line. Start at [`cli::run`].

pub mod agent;
pub mod cli;
pub mod commands;
pub mod config;
pub mod installation;
pub mod logging;
pub mod printable;
pub mod service;
pub mod serving;
pub mod standalone;
