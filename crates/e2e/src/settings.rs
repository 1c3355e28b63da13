//! Machine-wide kernel settings that a kubelet changes, saved and restored.
//!
//! They are not namespaced, so beds share them: they are saved before the first bed and restored
//! after the last.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Directory of the kernel settings.
pub(crate) const KERNEL: &str = "/proc/sys";

const CHANGED_BY_KUBELETS: [&str; 6] = [
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Settings(BTreeMap<String, String>);

impl Settings {
    /// The current values; one that cannot be read does not exist and cannot be changed either.
    pub(crate) fn read(kernel: &Path) -> Self {
        let values = CHANGED_BY_KUBELETS.into_iter().filter_map(|name| {
            let value = fs::read_to_string(kernel.join(name)).ok()?;
            Some((name.to_owned(), value.trim().to_owned()))
        });
        Self(values.collect())
    }

    /// Saves them in `file` atomically.
    pub(crate) fn save(&self, file: &Path) -> Result<()> {
        let part = file.with_extension("part");
        fs::write(&part, serde_json::to_vec(self)?)?;
        fs::rename(&part, file).with_context(|| format!("writing {}", file.display()))
    }

    /// Restores the values in `file` and removes it.
    pub(crate) fn restore(file: &Path, kernel: &Path) -> Result<()> {
        let kept = match fs::read(file) {
            Ok(kept) => kept,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
        };
        let kept: Self = serde_json::from_slice(&kept)
            .with_context(|| format!("{} is damaged; remove it", file.display()))?;
        let now = Self::read(kernel);
        for (name, value) in &kept.0 {
            if now.0.get(name) != Some(value) {
                fs::write(kernel.join(name), value)
                    .with_context(|| format!("restoring {name} to {value}"))?;
            }
        }
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_restored_once() {
        let directory = tempfile::tempdir().unwrap();
        let (kernel, kept) = (directory.path().join("sys"), directory.path().join("kept"));
        let panic = kernel.join("kernel/panic");
        fs::create_dir_all(kernel.join("kernel")).unwrap();
        fs::write(&panic, "0\n").unwrap();

        Settings::read(&kernel).save(&kept).unwrap();
        fs::write(&panic, "10\n").unwrap();
        Settings::restore(&kept, &kernel).unwrap();
        assert_eq!(fs::read_to_string(&panic).unwrap(), "0");

        // and only once: a change while there are no beds is the user's
        fs::write(&panic, "5").unwrap();
        Settings::restore(&kept, &kernel).unwrap();
        assert_eq!(fs::read_to_string(&panic).unwrap(), "5");
    }
}
