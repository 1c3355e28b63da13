//! Test server as a process: started, used and stopped.

// Tells clippy that functions without #[test] here are test code as well.
#![cfg(test)]

mod behaving;
mod program;
mod serving;
