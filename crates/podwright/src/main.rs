//! Binary of the `podwright` program; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    podwright::cli::run(std::env::args_os())
}
