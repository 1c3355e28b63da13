//! Image garbage collection.

use std::collections::BTreeSet;

use podwright_api::image_name;
use podwright_core::gc::{ImageRecords, ImageRemoval, ListedImage, Reclaim};
use podwright_cri as cri;

use super::{Gc, GcError};

/// Result of an image removal round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    pub images: usize,
    pub bytes: u64,
}

impl Gc {
    /// One round: images that are too old, then as many as the disk requires.
    pub async fn collect_images(&self) -> Result<(), GcError> {
        let policy = self.settings.images;
        let mut records = self.images.lock().await;
        let now = self.clock.now().mono;
        let there = self.listed_images().await?;
        records.note(&there, &self.images_in_use().await?, now);
        let outdated = records.outdated(&policy, now.since(self.began), now);
        let mut errors = self.remove_images(&outdated, Reclaim::Everything, &mut records).await.1;

        let image_dir = self.runtime.image_directory().await.map_err(GcError::List)?;
        let disk = (self.settings.disk)(&image_dir)?;
        let excess = match disk.excess(&policy) {
            Ok(excess) => excess,
            Err(error) => {
                self.emit_event("InvalidDiskCapacity", error.to_string());
                return Err(error.into());
            }
        };
        if excess > 0 {
            let enough = Reclaim::Bytes(excess);
            let order = records.reclaimable(&policy, now);
            let (freed, failed) = self.remove_images(&order, enough, &mut records).await;
            errors.extend(failed);
            let Reclaimed { images, bytes } = freed;
            tracing::info!(excess, freed = bytes, images, "removed unused images");
            self.pulled.forget_all_but(&records.ids().collect::<Vec<_>>());
            if !enough.is_met(bytes) {
                let used = disk.used_percent().unwrap_or(100);
                self.emit_event("FreeDiskSpaceFailed", shortfall(used, disk.capacity, bytes));
            }
        }
        GcError::of(errors)
    }

    /// Removes every unused image that has its minimum age: the disk is almost full.
    pub async fn reclaim_images(&self) -> Result<Reclaimed, GcError> {
        let mut records = self.images.lock().await;
        let now = self.clock.now().mono;
        let there = self.listed_images().await?;
        records.note(&there, &self.images_in_use().await?, now);
        let unused = records.reclaimable(&self.settings.images, now);
        let (reclaimed, errors) =
            self.remove_images(&unused, Reclaim::Everything, &mut records).await;
        self.pulled.forget_all_but(&records.ids().collect::<Vec<_>>());
        GcError::of(errors).map(|()| reclaimed)
    }

    async fn listed_images(&self) -> Result<Vec<ListedImage>, GcError> {
        let images = self.runtime.list_images().await.map_err(GcError::List)?;
        Ok(images.into_iter().map(listed).collect())
    }

    /// Images in use, by ID or full name: of containers in any state, of active pods, and of sandboxes.
    /// The CRI does not report the image of a sandbox.
    async fn images_in_use(&self) -> Result<BTreeSet<String>, GcError> {
        let runtime = &self.runtime;
        let mut used = runtime.leftovers().await.map_err(GcError::List)?.images_in_use;
        let sandboxes = runtime.sandbox_image().await.map_err(GcError::List)?;
        let kept = self.settings.kept_images.iter().cloned().chain(sandboxes);
        used.extend(kept.filter_map(|name| image_name::full_name(&name).ok()));
        for pod in self.pod_index.active_pods() {
            let volumes = pod.object.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
            let volumes = volumes.into_iter().flatten();
            let mounted = volumes.filter_map(|volume| volume.image.as_ref()?.reference.clone());
            let run = pod.containers.iter().map(|container| container.image.to_string());
            used.extend(mounted.chain(run).filter_map(|name| image_name::full_name(&name).ok()));
        }
        Ok(used)
    }

    /// Removes images in order until enough is freed, skipping failures. Returns what was freed and the
    /// errors.
    async fn remove_images(
        &self,
        order: &[ImageRemoval],
        enough: Reclaim,
        records: &mut ImageRecords,
    ) -> (Reclaimed, Vec<GcError>) {
        let (mut gone, mut bytes, mut errors) = (BTreeSet::new(), 0u64, Vec::new());
        for ImageRemoval { id, size, why } in order {
            if enough.is_met(bytes) {
                break;
            }
            match self.runtime.remove_image(id).await {
                Ok(()) => {
                    tracing::info!(image = id, size, why = why.as_str(), "removed image");
                    self.metrics.images.garbage_collected(*why);
                    bytes = bytes.saturating_add(*size);
                    gone.insert(id.clone());
                }
                Err(source) => {
                    errors.push(GcError::Runtime { what: format!("image {id}"), source });
                }
            }
        }
        records.forget(&gone);
        (Reclaimed { images: gone.len(), bytes }, errors)
    }
}

fn listed(image: cri::Image) -> ListedImage {
    let names = image.tags.into_iter().chain(image.digests).collect();
    ListedImage { id: image.id, names, size: image.size, pinned: image.pinned }
}

fn shortfall(used: u8, capacity: u64, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({used}% of {} used). Failed \
         to free sufficient space by deleting unused images (freed {freed} bytes). Investigate \
         disk usage, as it could be used by active images, logs, volumes, or other data.",
        in_binary_units(capacity)
    )
}

fn in_binary_units(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    let unit = UNITS.get(step as usize).copied().unwrap_or("B");
    format!("{:.1} {unit}", bytes as f64 / (1u64 << (10 * step)) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_in_binary_units() {
        for (bytes, want) in [
            (0, "0.0 B"),
            (1023, "1023.0 B"),
            (1 << 20, "1.0 MiB"),
            (50 * (1 << 30), "50.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(in_binary_units(bytes), want);
        }
    }
}
