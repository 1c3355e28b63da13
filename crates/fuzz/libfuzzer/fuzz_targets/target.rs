//! Runs the target that `PODWRIGHT_FUZZ_TARGET` names. `PODWRIGHT_FUZZ_SEEDS` is a directory that
//! gets the seeds.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use podwright_fuzz::{TARGETS, Target};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("PODWRIGHT_FUZZ_TARGET").unwrap_or_default();
        podwright_fuzz::find(&name).unwrap_or_else(|| {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            panic!("PODWRIGHT_FUZZ_TARGET={name:?} is not one of {}", known.join(", "))
        })
    })
}

fn write_seeds() {
    let Some(directory) = std::env::var_os("PODWRIGHT_FUZZ_SEEDS") else { return };
    for (number, seed) in (target().seeds)().into_iter().enumerate() {
        let file = Path::new(&directory).join(format!("seed-{number}"));
        std::fs::write(&file, seed).expect("write the seed");
    }
}

fuzz_target!(init: write_seeds(), |data: &[u8]| (target().run)(data));
