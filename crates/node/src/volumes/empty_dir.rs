//! A folder that lives as long as the pod, on disk or in memory.

use std::path::PathBuf;

use podwright_host::files::Links;
use podwright_host::mounts;
use rustix::mount::MountFlags;

use super::{Kind, Place};

const MODE: u32 = 0o777;

pub(super) struct EmptyDir;

impl Kind for EmptyDir {
    fn plugin(&self) -> &'static str {
        "kubernetes.io~empty-dir"
    }

    fn set_up(&self, place: &Place<'_>) -> Result<(), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        place.pod_dir.create_dir_all(&place.relative, MODE).map_err(|e| text(&e))?;
        let path = place.pod_dir.path().join(&place.relative);
        let source = place.volume.empty_dir.as_ref();
        match source.and_then(|source| source.medium.as_deref()).unwrap_or_default() {
            "" => Ok(()),
            "Memory" if mounts::is_mount_point(&path).map_err(|e| text(&e))? => Ok(()),
            "Memory" => {
                // Pinned first: the folder is the container's to write to after a restart.
                place.pod_dir.pin(&place.relative, Links::Refuse).map_err(|e| text(&e))?;
                let size = source.and_then(|source| source.size_limit.as_ref());
                let options = match size {
                    Some(limit) => format!("size={},mode=0777", bytes(&limit.0)?),
                    None => "mode=0777".into(),
                };
                mounts::mount("tmpfs", "tmpfs", &path, MountFlags::empty(), &options)
                    .map_err(|e| text(&e))
            }
            other => Err(format!("emptyDir medium {other:?} is not supported")),
        }
    }

    fn data(&self, place: &Place<'_>) -> Option<PathBuf> {
        Some(place.pod_dir.path().join(&place.relative))
    }
}

fn bytes(limit: &str) -> Result<i64, String> {
    let quantity: podwright_core::quantity::Quantity =
        limit.parse().map_err(|error| format!("sizeLimit {limit:?}: {error}"))?;
    Ok(quantity.value())
}
