//! The test server, seen from outside: as a process that is started, asked and stopped.

// Tells clippy that what has no #[test] here is test code all the same.
#![cfg(test)]

mod behaving;
mod program;
mod serving;
