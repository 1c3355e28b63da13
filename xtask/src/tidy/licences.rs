//! Check that every package in the build has a permissive licence.

use std::collections::BTreeSet;

use super::{Finding, spdx};
use crate::cargo::Package;

/// Permissive licences that only require attribution. No copyleft of any strength: shipping our
/// binary must not oblige anyone to publish changes.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

const ALLOWED_WITH: &[(&str, &str)] = &[("Apache-2.0", "LLVM-exception")];

/// All of them, as SPDX writes them.
pub(super) fn expressions() -> BTreeSet<String> {
    let with = ALLOWED_WITH.iter().map(|(licence, more)| format!("{licence} WITH {more}"));
    ALLOWED.iter().map(|licence| (*licence).to_owned()).chain(with).collect()
}

pub(super) fn allowed(tree: &[Package]) -> Finding {
    let expressions: BTreeSet<&str> = tree.iter().map(|p| p.licence.as_str()).collect();
    Finding {
        rule: "every package has a permissive licence",
        seen: format!("{} packages, {} expressions", tree.len(), expressions.len()),
        faults: tree.iter().filter_map(fault).collect(),
    }
}

fn fault(package: &Package) -> Option<String> {
    let Package { name, version, licence } = package;
    if licence.is_empty() {
        return Some(format!("{name} {version}: no licence in its manifest"));
    }
    let verdict = spdx::permits(licence, |licence, exception| match exception {
        None => ALLOWED.contains(&licence),
        Some(exception) => ALLOWED_WITH.contains(&(licence, exception)),
    });
    match verdict {
        Ok(true) => None,
        Ok(false) => Some(format!("{name} {version}: {licence}")),
        Err(error) => Some(format!("{name} {version}: cannot parse {licence:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permissive_licences_pass() {
        for (licence, passes) in [
            ("Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("MPL-2.0", false),
            ("LGPL-3.0-or-later", false),
            ("MIT OR GPL-3.0-only", true),
            ("", false),
            ("MIT OR", false),
        ] {
            let package =
                Package { name: "p".into(), version: "1.0.0".into(), licence: licence.into() };
            assert_eq!(allowed(&[package]).faults.is_empty(), passes, "{licence:?}");
        }
    }
}
