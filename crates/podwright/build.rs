//! Build script: sets the compiler version for `podwright version`, and linker options for a small
//! binary.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output();
    let version = version.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    // "rustc 1.95.0 (hash date)" to "1.95.0".
    let number = version.as_deref().and_then(|text| text.split_whitespace().nth(1));
    println!("cargo::rustc-env=PODWRIGHT_RUSTC={}", number.unwrap_or("unknown"));
    let is = |name: &str, want: &str| env::var(name).is_ok_and(|value| value == want);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        pack_relocations();
        if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
            fold_identical_code();
            drop_unwind_tables();
        }
    }
}

/// Shrinks relocations from two megabytes to twenty kilobytes. Needs glibc 2.36, the oldest
/// supported version.
fn pack_relocations() {
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}

/// Merges functions with identical code, which generics often produce. Needs lld, which is Rust's
/// default linker for this target.
fn fold_identical_code() {
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
}

/// The program aborts on panic and needs no unwind tables; without symbols a backtrace is useless,
/// and a panic still prints its location. Profiles derived from `release` may keep both.
fn drop_unwind_tables() {
    const SCRIPT: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame .eh_frame.* .gcc_except_table \
                          .gcc_except_table.*) } } INSERT AFTER .text;\n";
    let Some(directory) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    // …/release/build/podwright-…/out
    if directory.ancestors().nth(3).and_then(Path::file_name) != Some(OsStr::new("release")) {
        return;
    }
    let script = directory.join("no-unwind-tables.ld");
    match std::fs::write(&script, SCRIPT) {
        Ok(()) => {
            for argument in ["-Xlinker", "-T", "-Xlinker", &script.to_string_lossy()] {
                println!("cargo::rustc-link-arg-bins={argument}");
            }
        }
        Err(error) => println!("cargo::error=cannot write {}: {error}", script.display()),
    }
}
