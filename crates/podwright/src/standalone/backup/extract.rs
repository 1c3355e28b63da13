//! Extraction of an archive, which may come from anywhere and restores as root.
//!
//! Only the paths and types that a backup contains are accepted, every entry is created beneath the
//! directory without following links, and what an entry may occupy is bounded before it is written.

use std::io::Read;
use std::path::{Component, Path};

use anyhow::{Context as _, bail};
use podwright_host::files::{Links, Root};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};

use super::{API_FILES, DESCRIPTION, Description, LOADED_IMAGES, MAX_API_FILE, OBJECTS, Summary};

/// Bytes of zeros after the last entry; tar pads to blocks of 10 KiB.
const MAX_PADDING: u64 = 1 << 20;
const MAX_OBJECTS: u64 = 16 << 30;
const MAX_MANIFEST: u64 = 16 << 20;
/// Manifests and directories of manifests.
const MAX_MANIFESTS: u64 = 100_000;
const MAX_DEPTH: usize = 300;
/// Each entry occupies at least this, however small it is.
const ENTRY_COST: u64 = 4096;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Description,
    Objects,
    ApiFile,
    LoadedImages,
    Manifest,
    Volume,
}

impl Part {
    /// `None`: not part of a backup.
    fn of(path: &Path) -> Option<Self> {
        let mut parts = Vec::new();
        for part in path.components() {
            let Component::Normal(name) = part else { return None };
            parts.push(name.to_str());
        }
        match parts.as_slice() {
            [Some(DESCRIPTION)] => Some(Self::Description),
            [Some("api"), Some(OBJECTS)] => Some(Self::Objects),
            [Some("api"), Some(name)] if API_FILES.contains(name) => Some(Self::ApiFile),
            [Some(LOADED_IMAGES)] => Some(Self::LoadedImages),
            [Some("manifests"), ..] => Some(Self::Manifest),
            [Some("volumes"), ..] => Some(Self::Volume),
            _ => None,
        }
    }

    const fn max_size(self) -> u64 {
        match self {
            Self::Description | Self::ApiFile | Self::LoadedImages => MAX_API_FILE,
            Self::Objects => MAX_OBJECTS,
            Self::Manifest => MAX_MANIFEST,
            Self::Volume => u64::MAX,
        }
    }
}

/// Reads what follows the last entry: blocks of zeros, and the checksum of the compressed data, without
/// which the archive may be cut short.
fn read_end(rest: impl Read) -> anyhow::Result<()> {
    let mut rest = rest.take(MAX_PADDING + 1);
    let read =
        std::io::copy(&mut rest, &mut std::io::sink()).context("it is damaged or cut short")?;
    if read > MAX_PADDING {
        bail!("it goes on after its end");
    }
    Ok(())
}

/// Extracts into an empty directory of this user. `check` decides about the description, before
/// anything else is read.
pub(super) fn extract(
    mut archive: tar::Archive<impl Read>,
    directory: &Path,
    available: u64,
    check: impl Fn(&Description) -> anyhow::Result<()>,
) -> anyhow::Result<Summary> {
    let root = Root::open(directory)?;
    for name in ["api", "manifests"] {
        root.create_dir(name, 0o700)?;
    }
    let mut description: Option<Description> = None;
    let (mut left, mut manifests) = (available, 0_u64);
    // Times of directories change while they are filled.
    let mut directories = Vec::new();
    for entry in archive.entries().context("it is not a tar archive")? {
        let mut entry = entry.context("it is damaged or not a backup")?;
        let path = entry.path().context("it has an invalid path")?.into_owned();
        let shown = path.display().to_string();
        let part = Part::of(&path).with_context(|| format!("{shown:?} is not part of a backup"))?;
        match (part, &mut description) {
            (Part::Description, found @ None) => {
                let mut text = Vec::new();
                entry.by_ref().take(MAX_API_FILE).read_to_end(&mut text)?;
                let read: Description = serde_json::from_slice(&text)
                    .with_context(|| format!("its {DESCRIPTION} is not valid"))?;
                check(&read)?;
                if read.volumes {
                    root.create_dir("volumes", 0o700)?;
                }
                *found = Some(read);
                continue;
            }
            (_, None) => bail!("it does not begin with {DESCRIPTION}"),
            (Part::Description, Some(_)) => bail!("it has {DESCRIPTION} twice"),
            (Part::Volume, Some(description)) if !description.volumes => {
                bail!("{shown:?} is not part of a backup without volumes")
            }
            (_, Some(_)) => {}
        }
        if path.components().count() > MAX_DEPTH {
            bail!("{shown:?} is too deep");
        }
        if part == Part::Manifest {
            manifests += 1;
            if manifests > MAX_MANIFESTS {
                bail!("it has more than {MAX_MANIFESTS} manifests");
            }
        }
        let size = entry.size();
        if size > part.max_size() {
            bail!("{shown:?} is larger than {} bytes", part.max_size());
        }
        left = left
            .checked_sub(size.saturating_add(ENTRY_COST))
            .context("it is larger than the free space of the state directory")?;
        let kind = entry.header().entry_type();
        let in_tree = matches!(part, Part::Manifest | Part::Volume);
        if kind.is_dir() && in_tree {
            create_directory(&root, &path)?;
            directories.push((path, Attributes::of(entry.header(), part)?));
        } else if kind.is_file() {
            let attributes = Attributes::of(entry.header(), part)?;
            create_file(&root, &path, &mut entry, size, attributes)
                .with_context(|| format!("cannot extract {shown:?}"))?;
        } else if kind.is_symlink() && in_tree {
            let target = entry.link_name()?.with_context(|| format!("{shown:?} has no target"))?;
            root.symlink(&*target, &path)?;
            Attributes::of(entry.header(), part)?.own(&root, &path)?;
        } else {
            bail!("{shown:?} is of a type that a backup does not contain");
        }
    }
    for (path, attributes) in directories.into_iter().rev() {
        attributes.apply(&root, &path)?;
    }
    read_end(archive.into_inner())?;
    let description = description.context("it is empty")?;
    Ok(Summary { description, skipped: 0 })
}

/// A directory; those at the top exist already.
fn create_directory(root: &Root, path: &Path) -> anyhow::Result<()> {
    match root.create_dir(path, 0o700) {
        Err(error) if error.is_already_there() => {
            // Not a link or a file of that name.
            root.sub(path)?;
            Ok(())
        }
        outcome => Ok(outcome?),
    }
}

fn create_file(
    root: &Root,
    path: &Path,
    content: &mut impl Read,
    size: u64,
    attributes: Attributes,
) -> anyhow::Result<()> {
    let mut file = root.create_file(path)?;
    let copied = std::io::copy(&mut content.take(size), &mut file)?;
    if copied != size {
        bail!("it ends early");
    }
    attributes.apply_to(&file)?;
    file.sync_all()?;
    Ok(())
}

/// Owner, mode and time of an entry.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    owner: Uid,
    group: Gid,
    mode: Mode,
    modified: i64,
}

impl Attributes {
    fn of(header: &tar::Header, part: Part) -> anyhow::Result<Self> {
        // Only volumes have files of other users.
        let (owner, group, mode) = match part {
            Part::Volume => (
                u32::try_from(header.uid()?)?,
                u32::try_from(header.gid()?)?,
                header.mode()? & 0o7777,
            ),
            Part::Manifest => (0, 0, header.mode()? & 0o755),
            Part::Description | Part::Objects | Part::ApiFile | Part::LoadedImages => (0, 0, 0o600),
        };
        if owner == u32::MAX || group == u32::MAX {
            bail!("an owner is not valid");
        }
        // Tests do not run as root.
        let me = (rustix::process::geteuid(), rustix::process::getegid());
        let (owner, group) = match (part, me.0.is_root()) {
            (Part::Volume, _) | (_, true) => (Uid::from_raw(owner), Gid::from_raw(group)),
            (_, false) => me,
        };
        let modified = i64::try_from(header.mtime()?)?;
        Ok(Self { owner, group, mode: Mode::from_raw_mode(mode), modified })
    }

    /// Sets the owner of a link, or of anything.
    fn own(self, root: &Root, path: &Path) -> anyhow::Result<()> {
        let pinned = root.pin_entry(path)?;
        rustix::fs::chownat(&pinned, "", Some(self.owner), Some(self.group), AtFlags::EMPTY_PATH)?;
        Ok(())
    }

    fn apply(self, root: &Root, path: &Path) -> anyhow::Result<()> {
        self.apply_to(&root.open_file(path, Links::Refuse)?)
    }

    /// The owner first: changing it clears the set-user-id bit.
    fn apply_to(self, file: &std::fs::File) -> anyhow::Result<()> {
        rustix::fs::fchown(file, Some(self.owner), Some(self.group))?;
        rustix::fs::fchmod(file, self.mode)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.modified, tv_nsec: 0 },
        };
        rustix::fs::futimens(file, &times)?;
        Ok(())
    }
}
