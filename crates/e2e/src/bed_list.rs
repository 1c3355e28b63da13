//! List of the beds on this machine: creation, removal of leftovers, and shared kernel settings.
//!
//! A bed is a directory here, and a cleanup process that holds a lock on it. A directory with a
//! free lock has no owner any more; the next bed to start removes it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::CleanupProcess;
use crate::leftovers::Leftovers;
use crate::settings::{KERNEL, Settings};

/// Held by a cleanup process for the lifetime of its bed.
const GUARD: &str = ".guard";
/// Held while beds are created and removed.
const LOCK: &str = ".lock";
/// The kernel settings as they were before the first bed.
const SETTINGS: &str = ".settings.json";

const LOCK_LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct BedList {
    directory: PathBuf,
}

impl BedList {
    /// The list of this machine; `PODWRIGHT_BEDS` names another directory. The default is on disk,
    /// and short, because socket paths below it are limited to 107 bytes.
    pub(crate) fn open() -> Result<Self> {
        let directory = std::env::var_os("PODWRIGHT_BEDS")
            .map_or_else(|| PathBuf::from("/var/tmp/podwright-beds"), PathBuf::from);
        fs::create_dir_all(&directory)
            .with_context(|| format!("making {}", directory.display()))?;
        // The canonical path, as in the kernel's mount table.
        Ok(Self { directory: directory.canonicalize()? })
    }

    /// The list that contains a bed's directory.
    pub(crate) fn of(bed: &Path) -> Result<Self> {
        let directory = bed.parent().context("the bed's directory has no parent")?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Creates the directory of a new bed and starts its cleanup process, after removing the
    /// leftovers of others.
    pub(crate) fn create(&self) -> Result<(PathBuf, CleanupProcess)> {
        let lock = self.lock()?;
        self.clear_left_over(&lock)?;
        if self.beds()?.is_empty() {
            Settings::read(Path::new(KERNEL)).save(&self.directory.join(SETTINGS))?;
        }
        let bed = self.directory.join(new_id()?);
        fs::create_dir(&bed).with_context(|| format!("making {}", bed.display()))?;
        let cleanup = CleanupProcess::start(&bed)?;
        Ok((bed, cleanup))
    }

    /// The lock that a cleanup process holds.
    pub(crate) fn guard(bed: &Path) -> Result<File> {
        let guard = File::create(bed.join(GUARD))?;
        guard
            .try_lock()
            .with_context(|| format!("{} is already locked by a cleanup process", bed.display()))?;
        Ok(guard)
    }

    /// Removes the directory of a cleared bed; with the last one the kernel settings are restored.
    pub(crate) fn remove_bed(&self, leftovers: &Leftovers) -> Result<()> {
        let _lock = self.lock()?;
        leftovers.remove_directory()?;
        if self.beds()?.is_empty() {
            Settings::restore(&self.directory.join(SETTINGS), Path::new(KERNEL))?;
        }
        Ok(())
    }

    /// Removes every bed whose cleanup process is gone.
    fn clear_left_over(&self, _lock: &File) -> Result<()> {
        for bed in self.beds()? {
            let free = match File::open(bed.join(GUARD)) {
                Ok(guard) => guard.try_lock().is_ok(),
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if free {
                let leftovers = Leftovers::of(&bed)?;
                leftovers.clear()?;
                leftovers.remove_directory()?;
            }
        }
        if self.beds()?.is_empty() {
            Settings::restore(&self.directory.join(SETTINGS), Path::new(KERNEL))?;
        }
        Ok(())
    }

    fn beds(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.directory)
            .with_context(|| format!("reading {}", self.directory.display()))?;
        let directories = entries.flatten().filter(|entry| {
            !entry.file_name().to_string_lossy().starts_with('.')
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
        });
        Ok(directories.map(|entry| entry.path()).collect())
    }

    /// The time limit is long, since removing leftovers of others takes time.
    fn lock(&self) -> Result<File> {
        let path = self.directory.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(PAUSE),
                Err(TryLockError::WouldBlock) => bail!("{} stays locked", path.display()),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("locking {}", path.display()));
                }
            }
        }
    }
}

/// Eight hexadecimal digits: valid in names of cgroups, CNI networks and directories.
fn new_id() -> Result<String> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}
