//! Guards one bed; see `podwright_e2e::guardian`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        let _ = writeln!(io::stderr(), "usage: bed-guardian FOLDER");
        return ExitCode::from(2);
    };
    match podwright_e2e::guardian::guard(&folder, io::stdin(), io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "bed-guardian: {}: {error:#}", folder.display());
            ExitCode::FAILURE
        }
    }
}
