//! Installation of this program: binary, systemd unit, shell completions and man pages.
//!
//! A record of the installed files, with their hashes, is written before the first of them. It tells
//! own files from those of others: `install` replaces and `uninstall` removes only files that are as
//! recorded, and both refuse what a package owns.

mod packages;
mod record;

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail};
use clap_complete::Shell;
use podwright_host::trusted_path;
use sha2::{Digest as _, Sha256};

use crate::cli;
pub use packages::Packages;
use record::{InstalledFile, Record};

pub const UNIT: &str = "podwright-up.service";
const UNIT_DIRECTORY: &str = "/etc/systemd/system";
/// Directories with the units of packages.
const PACKAGE_UNITS: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
const UNIT_TEXT: &str = include_str!("../../../packaging/systemd/podwright-up.service");
/// The command in [`UNIT_TEXT`].
const UNIT_COMMAND: &str = "/usr/local/bin/podwright up --foreground";
const TEMPORARY: &str = ".podwright-";
/// A larger file is none of ours.
const MAX_SIZE: u64 = 512 << 20;

/// Where to install.
#[derive(Clone, Debug)]
pub struct Target {
    /// Directory that takes the place of `/`, for images and tests.
    pub root: PathBuf,
    pub prefix: PathBuf,
    /// The unit is installed.
    pub systemd: bool,
    /// State directory of the node that starts at boot.
    pub state_dir: PathBuf,
}

impl Target {
    /// The path below the root.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub fn program(&self) -> PathBuf {
        self.prefix.join("bin/podwright")
    }

    fn record(&self) -> PathBuf {
        self.path(&self.prefix.join("share/podwright/installed.json"))
    }
}

/// A file to install. Paths are those without the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    pub path: PathBuf,
    content: Vec<u8>,
    sha256: String,
    mode: u32,
}

impl PlannedFile {
    fn new(path: PathBuf, content: Vec<u8>, mode: u32) -> Self {
        let sha256 = hex(&Sha256::digest(&content));
        Self { path, content, sha256, mode }
    }
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Create,
    Replace,
    Keep,
    /// It was installed before and is not any more.
    Remove,
}

/// A checked installation.
pub struct Plan {
    target: Target,
    files: Vec<PlannedFile>,
    earlier: Option<Record>,
    pub changes: Vec<(PathBuf, Change)>,
}

/// The files of this program.
pub fn files(target: &Target, program: &Path) -> anyhow::Result<Vec<PlannedFile>> {
    let content = std::fs::read(program).context("cannot read this program")?;
    let mut files = vec![PlannedFile::new(target.program(), content, 0o755)];
    let mut add = |path: PathBuf, content: Vec<u8>| {
        files.push(PlannedFile::new(path, content, 0o644));
    };
    if target.systemd {
        let text = unit(&target.program(), &target.state_dir)?;
        add(Path::new(UNIT_DIRECTORY).join(UNIT), text.into_bytes());
    }
    let share = target.prefix.join("share");
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions/podwright"),
        (Shell::Zsh, "zsh/site-functions/_podwright"),
        (Shell::Fish, "fish/vendor_completions.d/podwright.fish"),
    ] {
        let mut script = Vec::new();
        cli::completion(shell, &mut script)?;
        add(share.join(path), script);
    }
    let pages = tempfile::tempdir().context("cannot create a temporary directory")?;
    cli::man_pages(pages.path()).context("cannot write the man pages")?;
    let mut names: Vec<PathBuf> = std::fs::read_dir(pages.path())?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    names.sort();
    for page in names {
        let name = page.file_name().context("a man page has no name")?;
        add(share.join("man/man1").join(name), std::fs::read(&page)?);
    }
    Ok(files)
}

/// The unit with the installed program.
fn unit(program: &Path, state_dir: &Path) -> anyhow::Result<String> {
    let mut command = format!("{} up --foreground", quoted(program)?);
    if state_dir != Path::new(cli::STATE_DIR) {
        command.push_str(&format!(" --state-dir {}", quoted(state_dir)?));
    }
    if !UNIT_TEXT.contains(UNIT_COMMAND) {
        bail!("the unit does not start {UNIT_COMMAND}");
    }
    Ok(UNIT_TEXT.replace(UNIT_COMMAND, &command))
}

/// A path for a unit; systemd gives `%`, `$` and others a meaning.
fn quoted(path: &Path) -> anyhow::Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    path.to_str().filter(|path| path.chars().all(plain)).with_context(|| {
        format!("{} has characters that a systemd unit cannot contain", path.display())
    })
}

impl Plan {
    /// Checks everything before anything is changed.
    pub fn check(
        target: Target,
        files: Vec<PlannedFile>,
        packages: &Packages,
    ) -> anyhow::Result<Self> {
        let earlier = Record::read(&target.record())?;
        let mut changes = Vec::new();
        let mut problems = Vec::new();
        for file in &files {
            match check_file(&target, file, earlier.as_ref(), packages) {
                Ok(change) => changes.push((file.path.clone(), change)),
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        if target.systemd
            && let Some(unit) = package_unit(&target, packages)?
        {
            problems.push(unit);
        }
        for known in earlier.iter().flat_map(|record| &record.files) {
            if files.iter().all(|file| file.path != known.path) {
                changes.push((known.path.clone(), Change::Remove));
            }
        }
        if !problems.is_empty() {
            bail!("nothing was installed:\n  {}", problems.join("\n  "));
        }
        Ok(Self { target, files, earlier, changes })
    }

    pub fn is_up_to_date(&self) -> bool {
        self.changes.iter().all(|(_, change)| *change == Change::Keep)
    }

    /// Writes the files. An interrupted installation is completed or removed by its record.
    pub fn apply(&self) -> anyhow::Result<()> {
        let earlier = self.earlier.clone().unwrap_or_default();
        let new: Vec<InstalledFile> = self.files.iter().map(InstalledFile::of).collect();
        let mut record = Record { directories: earlier.directories, files: Vec::new() };
        record.files.clone_from(&new);
        // Until all are written, a file may be the new or the earlier one.
        record.files.extend(earlier.files.iter().filter(|it| !new.contains(it)).cloned());
        for directory in self.missing_directories(&mut record)? {
            std::fs::create_dir(&directory)
                .and_then(|()| {
                    let mode = std::fs::Permissions::from_mode(0o755);
                    std::fs::set_permissions(&directory, mode)
                })
                .with_context(|| format!("cannot create directory {}", directory.display()))?;
        }
        record.write(&self.target.record())?;
        for file in &self.files {
            let change = self.changes.iter().find(|(path, _)| *path == file.path);
            if change.is_some_and(|(_, change)| *change == Change::Keep) {
                continue;
            }
            write(&self.target.path(&file.path), &file.content, file.mode)?;
        }
        for (path, change) in &self.changes {
            if *change == Change::Remove {
                let known = earlier.files.iter().filter(|it| it.path == *path);
                remove(&self.target, path, &known.collect::<Vec<_>>())?;
            }
        }
        record.files = new;
        record.write(&self.target.record())
    }

    /// Directories that do not exist, parents first; they are recorded.
    fn missing_directories(&self, record: &mut Record) -> anyhow::Result<Vec<PathBuf>> {
        let record_path = self.target.prefix.join("share/podwright/installed.json");
        let mut missing = Vec::new();
        for path in self.files.iter().map(|file| &file.path).chain([&record_path]) {
            let above: Vec<&Path> = path.ancestors().skip(1).collect();
            for directory in above.into_iter().rev() {
                let real = self.target.path(directory);
                if missing.contains(&real) || real.is_dir() {
                    continue;
                }
                if std::fs::symlink_metadata(&real).is_ok() {
                    bail!("{} is not a directory", real.display());
                }
                missing.push(real);
                record.directories.push(directory.to_owned());
            }
        }
        Ok(missing)
    }
}

/// What to do with one file; an error if it is not ours.
fn check_file(
    target: &Target,
    file: &PlannedFile,
    earlier: Option<&Record>,
    packages: &Packages,
) -> anyhow::Result<Change> {
    let real = target.path(&file.path);
    check_directories(target, &file.path)?;
    let shown = file.path.display();
    if let Some(package) = packages.owner(&file.path)? {
        bail!("{shown} belongs to the package {package}. Fix: upgrade or remove the package");
    }
    let Some(found) = metadata(&real)? else { return Ok(Change::Create) };
    if !found.is_file() {
        bail!("{shown} is not a regular file. Fix: move it away");
    }
    let known: Vec<&InstalledFile> =
        earlier.iter().flat_map(|record| &record.files).filter(|it| it.path == file.path).collect();
    let hash = hash_of(&real)?;
    let new = InstalledFile::of(file);
    if hash == new.sha256 && found.mode() & 0o7777 == file.mode && known.contains(&&new) {
        return Ok(Change::Keep);
    }
    if known.iter().any(|it| it.sha256 == hash) {
        return Ok(Change::Replace);
    }
    match known.is_empty() {
        true => bail!("{shown} was not installed by podwright. Fix: move it away"),
        false => bail!("{shown} was changed after it was installed. Fix: move it away"),
    }
}

/// Checks that only root could have made what is installed into.
fn check_directories(target: &Target, path: &Path) -> anyhow::Result<()> {
    for directory in path.ancestors().skip(1) {
        let real = target.path(directory);
        match metadata(&real)? {
            None => {}
            // Below another root, which its owner controls, only links that lead out are refused.
            Some(_) if target.root != Path::new("/") => {
                let root = std::fs::canonicalize(&target.root)?;
                let found = std::fs::canonicalize(&real)
                    .with_context(|| format!("cannot resolve {}", real.display()))?;
                if !found.starts_with(&root) {
                    bail!("{} leads out of {}", real.display(), root.display());
                }
                return Ok(());
            }
            Some(_) => {
                trusted_path::check_directory(&real).with_context(|| {
                    format!("{} is not installed, because others could replace it", path.display())
                })?;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A unit of the same name that a package installed: ours would take its place.
fn package_unit(target: &Target, packages: &Packages) -> anyhow::Result<Option<String>> {
    for directory in PACKAGE_UNITS {
        let path = Path::new(directory).join(UNIT);
        if metadata(&target.path(&path))?.is_none() {
            continue;
        }
        let package = packages.owner(&path)?;
        let owner = package
            .map_or_else(|| "another installation".to_owned(), |it| format!("the package {it}"));
        return Ok(Some(format!(
            "{} belongs to {owner}. Fix: upgrade or remove it",
            path.display()
        )));
    }
    Ok(None)
}

/// Outcome of [`uninstall`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Uninstalled {
    pub removed: Vec<PathBuf>,
    /// Changed after they were installed.
    pub kept: Vec<PathBuf>,
}

/// Whether the record lists the unit.
pub fn has_unit(target: &Target) -> anyhow::Result<bool> {
    let record = Record::read(&target.record())?;
    let unit = Path::new(UNIT_DIRECTORY).join(UNIT);
    Ok(record.is_some_and(|record| record.files.iter().any(|file| file.path == unit)))
}

/// Removes exactly what was recorded and has not changed since. `None`: nothing is installed.
pub fn uninstall(target: &Target, dry_run: bool) -> anyhow::Result<Option<Uninstalled>> {
    let Some(record) = Record::read(&target.record())? else { return Ok(None) };
    let mut known: BTreeMap<&Path, Vec<&InstalledFile>> = BTreeMap::new();
    for file in &record.files {
        known.entry(&file.path).or_default().push(file);
    }
    let mut outcome = Uninstalled::default();
    for (path, known) in known {
        let removable = match dry_run {
            true => is_own(target, path, &known)?,
            false => remove(target, path, &known)?,
        };
        match removable {
            Some(true) => outcome.removed.push(path.to_owned()),
            Some(false) => outcome.kept.push(path.to_owned()),
            None => {}
        }
    }
    if dry_run {
        return Ok(Some(outcome));
    }
    let record_path = target.record();
    std::fs::remove_file(&record_path)
        .with_context(|| format!("cannot remove {}", record_path.display()))?;
    let mut directories = record.directories;
    // Deepest first; one with other files stays.
    directories.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for directory in directories {
        let real = target.path(&directory);
        match std::fs::remove_dir(&real) {
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory
                ) =>
            {
                return Err(error).with_context(|| format!("cannot remove {}", real.display()));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(Some(outcome))
}

/// Whether the file is as it was installed; `None` if it is gone.
fn is_own(target: &Target, path: &Path, known: &[&InstalledFile]) -> anyhow::Result<Option<bool>> {
    let real = target.path(path);
    let Some(found) = metadata(&real)? else { return Ok(None) };
    if !found.is_file() {
        return Ok(Some(false));
    }
    check_directories(target, path)?;
    let hash = hash_of(&real)?;
    Ok(Some(known.iter().any(|it| it.sha256 == hash)))
}

fn remove(target: &Target, path: &Path, known: &[&InstalledFile]) -> anyhow::Result<Option<bool>> {
    let own = is_own(target, path, known)?;
    if own == Some(true) {
        let real = target.path(path);
        std::fs::remove_file(&real).with_context(|| format!("cannot remove {}", real.display()))?;
    }
    Ok(own)
}

fn metadata(path: &Path) -> anyhow::Result<Option<Metadata>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn hash_of(path: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(failed)?.take(MAX_SIZE);
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer).with_context(failed)?;
        match buffer.get(..read) {
            Some([]) | None => return Ok(hex(&hash.finalize())),
            Some(part) => hash.update(part),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces a file atomically: a running program keeps the one it was started from.
fn write(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let write = || {
        let above = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(above)?;
        file.write_all(content)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok::<_, std::io::Error>(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// An absolute path without `..`.
pub fn check_path(path: &Path) -> anyhow::Result<()> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) {
        bail!("{} is not an absolute path", path.display());
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
