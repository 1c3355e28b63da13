//! Record of the images that were loaded by hand. They cannot be pulled again, so they are removed
//! only on request.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{Layout, unreadable, write_private};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LoadedImages {
    #[serde(rename = "loaded")]
    names: BTreeSet<String>,
}

/// The names of the images that were loaded and not removed since.
pub fn read(layout: &Layout) -> anyhow::Result<BTreeSet<String>> {
    let path = layout.loaded_images();
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(unreadable(error, &path)),
    };
    let images: LoadedImages = serde_json::from_slice(&text).with_context(|| {
        format!("{} is corrupt. Fix: delete it; prune then removes loaded images", path.display())
    })?;
    Ok(images.names)
}

/// Adds and removes names.
pub fn change(
    layout: &Layout,
    added: &BTreeSet<String>,
    removed: &BTreeSet<String>,
) -> anyhow::Result<()> {
    // Two commands may load at the same time.
    let state = layout.containerd();
    let locked = File::open(&state).map_err(|error| unreadable(error, &state))?;
    flock(&locked, FlockOperation::LockExclusive)
        .with_context(|| format!("cannot lock {}", state.display()))?;
    let before = read(layout)?;
    let names: BTreeSet<String> =
        before.iter().filter(|name| !removed.contains(*name)).chain(added).cloned().collect();
    if names == before {
        return Ok(());
    }
    write_private(&layout.loaded_images(), &serde_json::to_vec_pretty(&LoadedImages { names })?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_until_they_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path());
        std::fs::create_dir(layout.containerd()).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let none: BTreeSet<String> = BTreeSet::new();
        assert_eq!(read(&layout).unwrap(), none);
        change(&layout, &names(&["a", "b"]), &none).unwrap();
        change(&layout, &names(&["c"]), &names(&["a", "x"])).unwrap();
        assert_eq!(read(&layout).unwrap(), names(&["b", "c"]));
        // Loaded again, by an import of the same name.
        change(&layout, &names(&["b"]), &names(&["b"])).unwrap();
        assert_eq!(read(&layout).unwrap(), names(&["b", "c"]));
        std::fs::write(layout.loaded_images(), "[]").unwrap();
        let error = format!("{:#}", read(&layout).unwrap_err());
        assert!(error.contains("images.json is corrupt"), "{error}");
    }
}
