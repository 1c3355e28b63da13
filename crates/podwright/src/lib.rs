//! The `podwright` program: arguments to validated settings to a running node.
//!
//! A library with a very small binary on top, so that tests, man pages and the end-to-end suite use
//! the same code as the command line does. Start at [`cli::run`].

pub mod agent;
pub mod cli;
pub mod commands;
pub mod config;
pub mod logging;
pub mod service;
pub mod serving;
pub mod standalone;
