//! Size of the release binary, by section, crate and embedded file.
//!
//! The program is built as for a release, but with its symbols, which say what each function and
//! constant belongs to. Link-time optimization copies code between crates: a function counts for
//! the crate of its name, so a generic function of a library counts for the library, and one that
//! was inlined for its caller. Constants without a name count for their section only.

mod symbol;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionFlags, SymbolKind, elf};

use crate::cargo::Workspace;

/// Most that the release binary may have.
const BUDGET: u64 = 22_000_000;
/// Files that build scripts write and the program embeds.
const EMBEDDED: [(&str, &str); 2] =
    [("podwright-pause-", "pause"), ("podwright-apiserver-", "descriptions.zlib")];

pub(crate) fn run(
    workspace: &Workspace,
    program: Option<PathBuf>,
    crates: usize,
) -> anyhow::Result<ExitCode> {
    let (program, built) = match program {
        Some(program) => (program, None),
        None => {
            let directory = build(workspace)?;
            (directory.join("podwright"), Some(directory))
        }
    };
    let content = fs::read(&program);
    let content = content.with_context(|| format!("cannot read {}", program.display()))?;
    let measured =
        Measured::of(&content).with_context(|| format!("cannot measure {}", program.display()))?;
    measured.print(crates);
    if let Some(directory) = built {
        print_embedded(&embedded(&directory.join("build"))?);
    }
    let (size, budget) = (megabytes(measured.size), megabytes(BUDGET));
    if measured.size > BUDGET {
        println!("\n{size} MB: more than the budget of {budget} MB");
        return Ok(ExitCode::FAILURE);
    }
    println!("\n{size} MB of {budget} MB");
    Ok(ExitCode::SUCCESS)
}

/// Builds the program; returns the directory that it is in.
fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--package", "podwright", "--profile", "size"]);
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(status.success(), "cargo build ended with {status}");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target.unwrap_or_else(|| workspace.root.join("target")).join("size"))
}

/// The parts of a program, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Measured {
    /// Without symbols, as it is released.
    size: u64,
    sections: BTreeMap<String, u64>,
    /// Code and named constants of each crate.
    crates: BTreeMap<String, CrateSize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CrateSize {
    code: u64,
    data: u64,
}

impl CrateSize {
    fn total(self) -> u64 {
        self.code + self.data
    }
}

impl Measured {
    fn of(content: &[u8]) -> anyhow::Result<Self> {
        let file = object::File::parse(content)?;
        let mut measured = Self::default();
        for section in file.sections() {
            let SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let (_, in_file) = section.file_range().unwrap_or_default();
            if sh_flags.contains(elf::SHF_ALLOC) && in_file > 0 {
                *measured.sections.entry(section.name()?.to_owned()).or_default() += in_file;
            }
        }
        measured.size = measured.sections.values().sum();
        // Equal functions are folded: several names at one address are one function.
        let mut seen = BTreeSet::new();
        for symbol in file.symbols().filter(|symbol| symbol.is_definition()) {
            let kind = symbol.kind();
            if !matches!(kind, SymbolKind::Text | SymbolKind::Data)
                || symbol.size() == 0
                || !seen.insert(symbol.address())
            {
                continue;
            }
            let name = symbol::crate_of(symbol.name().unwrap_or_default());
            let entry = measured.crates.entry(name).or_default();
            match kind {
                SymbolKind::Text => entry.code += symbol.size(),
                _ => entry.data += symbol.size(),
            }
        }
        Ok(measured)
    }

    fn print(&self, most: usize) {
        println!("{:>9}  section", "KB");
        for (name, size) in by_size(&self.sections, |size| *size) {
            println!("{:>9}  {name}", kilobytes(*size));
        }
        if self.crates.is_empty() {
            println!("\nno symbols: sizes of crates need the build with symbols");
            return;
        }
        println!("\n{:>9} {:>9} {:>9}  crate", "KB", "code", "data");
        let sorted = by_size(&self.crates, |size| size.total());
        for (name, size) in sorted.iter().take(most) {
            let (code, data) = (kilobytes(size.code), kilobytes(size.data));
            println!("{:>9} {code:>9} {data:>9}  {name}", kilobytes(size.total()));
        }
        let rest: u64 = sorted.iter().skip(most).map(|(_, size)| size.total()).sum();
        println!(
            "{:>9} {:>9} {:>9}  {} others",
            kilobytes(rest),
            "",
            "",
            sorted.len().saturating_sub(most)
        );
        let named: u64 = self.crates.values().map(|size| size.total()).sum();
        let unnamed = self.size.saturating_sub(named);
        println!("{:>9} {:>9} {:>9}  without a name", kilobytes(unnamed), "", "");
    }
}

fn by_size<T>(parts: &BTreeMap<String, T>, size: impl Fn(&T) -> u64) -> Vec<(&String, &T)> {
    let mut sorted: Vec<(&String, &T)> = parts.iter().collect();
    sorted.sort_by_key(|(_, part)| std::cmp::Reverse(size(part)));
    sorted
}

/// Embedded files and their sizes, of the newest build of each.
fn embedded(build: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    let directories = fs::read_dir(build);
    let directories =
        directories.with_context(|| format!("cannot list {}", build.display()))?.flatten();
    let names: Vec<PathBuf> = directories.map(|entry| entry.path()).collect();
    for (package, file) in EMBEDDED {
        let of_package = names.iter().filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(package))
        });
        let written = of_package.filter_map(|path| fs::metadata(path.join("out").join(file)).ok());
        let newest = written.max_by_key(|metadata| metadata.modified().ok());
        let newest = newest.with_context(|| format!("no build wrote {package}*/out/{file}"))?;
        found.insert(file.to_owned(), newest.len());
    }
    Ok(found)
}

fn print_embedded(files: &BTreeMap<String, u64>) {
    println!("\n{:>9}  embedded file", "KB");
    for (name, size) in by_size(files, |size| *size) {
        println!("{:>9}  {name}", kilobytes(*size));
    }
}

fn kilobytes(size: u64) -> String {
    format!("{}.{}", size / 1000, size % 1000 / 100)
}

fn megabytes(size: u64) -> String {
    format!("{}.{:02}", size / 1_000_000, size % 1_000_000 / 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_sections_and_crates() {
        let program = std::env::current_exe().unwrap();
        let content = fs::read(program).unwrap();
        let measured = Measured::of(&content).unwrap();
        assert!(measured.sections[".text"] > 100_000, "{:?}", measured.sections);
        for name in ["std", "core", "xtask"] {
            let size = measured.crates.get(name).copied().unwrap_or_default();
            assert!(size.code > 1000, "{name}: {size:?}");
        }
        let code: u64 = measured.crates.values().map(|size| size.code).sum();
        assert!(code <= measured.sections.values().sum(), "nothing is counted twice");
        assert!(measured.size < content.len() as u64, "symbols do not count");
    }

    #[test]
    fn file_that_is_no_program_is_an_error() {
        assert!(Measured::of(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn embedded_files_are_those_of_the_newest_build() {
        let build = tempfile::tempdir().unwrap();
        let write = |directory: &str, file: &str, size: usize| {
            let out = build.path().join(directory).join("out");
            fs::create_dir_all(&out).unwrap();
            fs::write(out.join(file), vec![0; size]).unwrap();
        };
        assert!(embedded(build.path()).is_err(), "nothing was built");
        write("podwright-pause-1", "pause", 10);
        write("podwright-apiserver-2", "descriptions.zlib", 30);
        write("podwright-apiserver-3", "other", 40);
        let found = embedded(build.path()).unwrap();
        let want = [("descriptions.zlib", 30), ("pause", 10)];
        assert_eq!(found, want.map(|(name, size)| (name.to_owned(), size)).into());
    }

    #[test]
    fn sizes_are_rounded_down() {
        assert_eq!(kilobytes(1_999), "1.9");
        assert_eq!(megabytes(21_999_999), "21.99");
    }
}
