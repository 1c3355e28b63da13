//! Cases on a virtual machine. They take the longest, and cases start in the order of their names:
//! the module name makes these start early.

mod install;
mod units;
mod vm;
