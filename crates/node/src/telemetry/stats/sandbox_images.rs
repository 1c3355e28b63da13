//! Images of sandboxes, for the `image` label of their series.
//!
//! The CRI has no field for it; runtimes report it in the verbose status of a sandbox. It does not
//! change, so each sandbox is queried once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use podwright_core::ids::SandboxId;
use podwright_cri as cri;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::Snapshot;

/// Timeout for all queries of one scrape. The remaining sandboxes are queried in the next one.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct SandboxImages(Mutex<HashMap<SandboxId, String>>);

impl SandboxImages {
    /// The known images of the sandboxes.
    pub(super) async fn of(
        &self,
        snapshot: &Snapshot,
        runtime: &cri::Client,
    ) -> HashMap<SandboxId, String> {
        let shown: HashSet<&SandboxId> = snapshot.pods.iter().map(|pod| &pod.sandbox).collect();
        let mut known = self.0.lock().await;
        known.retain(|id, _| shown.contains(id));
        let query = async {
            for id in shown {
                if known.contains_key(id) {
                    continue;
                }
                match runtime.sandbox_info(id).await {
                    Ok(info) => drop(known.insert(id.clone(), image(&info))),
                    Err(error) => {
                        tracing::debug!(%error, sandbox = %id, "cannot get sandbox image");
                        return;
                    }
                }
            }
        };
        // Cancel-safe: images received so far are kept.
        let _ = tokio::time::timeout(QUERY_TIMEOUT, query).await;
        known.clone()
    }
}

/// Empty if the runtime does not report it.
fn image(info: &BTreeMap<String, String>) -> String {
    #[derive(Deserialize)]
    struct Info {
        #[serde(rename = "image", default)]
        image: String,
    }
    let info = info.get("info").and_then(|text| serde_json::from_str::<Info>(text).ok());
    info.map(|info| info.image).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_image_is_read_from_verbose_status() {
        for (case, text, want) in [
            (
                "containerd",
                r#"{"pid":7,"image":"registry.k8s.io/pause:3.10"}"#,
                "registry.k8s.io/pause:3.10",
            ),
            ("no image", r#"{"pid":7}"#, ""),
            ("not a string", r#"{"image":7}"#, ""),
            ("not JSON", "pid 7", ""),
        ] {
            let info = [("info".to_owned(), text.to_owned())].into();
            assert_eq!(image(&info), want, "{case}");
        }
        assert_eq!(image(&BTreeMap::new()), "");
    }
}
