//! Cases on a machine that boots. They take the longest, and cases begin in the order of their
//! names: these are to begin early.

mod units;
mod vm;
