//! The beds on this machine: who may start, who is left over, who is last.
//!
//! A bed is a folder here, and a guardian that holds a lock on it. A folder whose lock is free
//! belongs to nobody any more, whatever happened; the next bed to start clears it away.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guardian::Guardian;
use crate::remains::Remains;
use crate::settings::{KERNEL, Settings};

/// Held by a guardian for as long as its bed lives.
const GUARD: &str = ".guard";
/// Held while beds are claimed, cleared and retired.
const LOCK: &str = ".lock";
/// The kernel settings as they were before the first bed.
const SETTINGS: &str = ".settings.json";

const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct Roster {
    folder: PathBuf,
}

impl Roster {
    /// The roster of this machine; `PODWRIGHT_BEDS` names another folder. The default is on disk,
    /// and short, because sockets below it must have paths of at most 107 bytes.
    pub(crate) fn open() -> Result<Self> {
        let folder = std::env::var_os("PODWRIGHT_BEDS")
            .map_or_else(|| PathBuf::from("/var/tmp/podwright-beds"), PathBuf::from);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // As the kernel names it in its mount table.
        Ok(Self { folder: folder.canonicalize()? })
    }

    /// The roster a bed's folder is on.
    pub(crate) fn of(bed: &Path) -> Result<Self> {
        let folder = bed.parent().context("a bed's folder has a parent")?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Makes the folder of a new bed and has it guarded, after clearing away what others left.
    pub(crate) fn claim(&self) -> Result<(PathBuf, Guardian)> {
        let lock = self.lock()?;
        self.clear_left_over(&lock)?;
        if self.beds()?.is_empty() {
            Settings::read(Path::new(KERNEL)).save(&self.folder.join(SETTINGS))?;
        }
        let bed = self.folder.join(new_id()?);
        fs::create_dir(&bed).with_context(|| format!("making {}", bed.display()))?;
        let guardian = Guardian::start(&bed)?;
        Ok((bed, guardian))
    }

    /// What a guardian holds.
    pub(crate) fn guard(bed: &Path) -> Result<File> {
        let guard = File::create(bed.join(GUARD))?;
        guard.try_lock().with_context(|| format!("{} is guarded already", bed.display()))?;
        Ok(guard)
    }

    /// Takes a bed, already cleared, off the roster; the last one puts the settings back.
    pub(crate) fn retire(&self, remains: &Remains) -> Result<()> {
        let _lock = self.lock()?;
        remains.remove_folder()?;
        if self.beds()?.is_empty() {
            Settings::restore(&self.folder.join(SETTINGS), Path::new(KERNEL))?;
        }
        Ok(())
    }

    /// Clears away every bed whose guardian is gone.
    fn clear_left_over(&self, _lock: &File) -> Result<()> {
        for bed in self.beds()? {
            let free = match File::open(bed.join(GUARD)) {
                Ok(guard) => guard.try_lock().is_ok(),
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if free {
                let remains = Remains::of(&bed)?;
                remains.clear()?;
                remains.remove_folder()?;
            }
        }
        if self.beds()?.is_empty() {
            Settings::restore(&self.folder.join(SETTINGS), Path::new(KERNEL))?;
        }
        Ok(())
    }

    fn beds(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.folder)
            .with_context(|| format!("reading {}", self.folder.display()))?;
        let folders = entries.flatten().filter(|entry| {
            !entry.file_name().to_string_lossy().starts_with('.')
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
        });
        Ok(folders.map(|entry| entry.path()).collect())
    }

    /// Waits long, since clearing up after others takes time, but not for ever.
    fn lock(&self) -> Result<File> {
        let path = self.folder.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        let deadline = Instant::now() + PATIENCE;
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

/// Eight hexadecimal digits: what a cgroup, a CNI network and a folder may be called.
fn new_id() -> Result<String> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}
