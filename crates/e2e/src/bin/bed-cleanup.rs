//! Cleanup process of one bed; see `podwright_e2e::cleanup`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        let _ = writeln!(io::stderr(), "usage: bed-cleanup DIRECTORY");
        return ExitCode::from(2);
    };
    match podwright_e2e::cleanup::guard(&directory, io::stdin(), io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "bed-cleanup: {}: {error:#}", directory.display());
            ExitCode::FAILURE
        }
    }
}
