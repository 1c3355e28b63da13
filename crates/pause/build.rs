//! Build script: compiles `program/pause.rs` into the static program that the library embeds.
//!
//! Why not a binary of this package: cargo cannot build a single binary without standard library
//! and linked libraries, and `podwright` needs its bytes at compile time.

// Cargo reads its instructions from standard output.
#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "program/pause.rs";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");

    let program = Path::new(&variable("OUT_DIR")?).join("pause");
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.args(["--edition", "2024", "--crate-name", "pause", "--crate-type", "bin", SOURCE]);
    rustc.arg("--target").arg(variable("TARGET")?).arg("-o").arg(&program);
    for setting in [
        "opt-level=s",
        "panic=abort",
        "strip=symbols",
        "relocation-model=static",
        "force-unwind-tables=no",
        // Neither the C library nor its start-up code.
        "link-arg=-nostartfiles",
        "link-arg=-nostdlib",
        "link-arg=-static",
        // One page for headers and code together; GNU ld would spread 1 KB over three.
        "link-arg=-Wl,-z,noseparate-code",
        "link-arg=-Wl,--build-id=none",
    ] {
        rustc.args(["-C", setting]);
    }
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }

    let status = rustc.status().map_err(|e| format!("cannot run {rustc:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{rustc:?} ended with {status}").into()) }
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("cargo sets {name} for build scripts: {e}"))
}
