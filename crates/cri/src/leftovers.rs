//! Listing of all sandboxes, containers and images in the runtime, for garbage collection.

use std::collections::BTreeSet;
use std::path::PathBuf;

use podwright_core::gc::{ListedContainer, ListedSandbox};
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_proto::cri;

use crate::client::Client;
use crate::convert;
use crate::error::Error;

/// Objects of pods in the runtime. Containers that belong to no pod are not ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub containers: Vec<ListedContainer>,
    pub sandboxes: Vec<ListedSandbox>,
    /// Every image name that any container uses, including containers that belong to no pod.
    pub images_in_use: BTreeSet<String>,
}

impl Client {
    pub async fn leftovers(&self) -> Result<Leftovers, Error> {
        let (sandboxes, containers) = self.list_all().await?;
        let own: BTreeSet<String> = sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
        let images = containers.iter().flat_map(images_of).filter(|name| !name.is_empty());
        Ok(Leftovers {
            images_in_use: images.map(str::to_owned).collect(),
            containers: containers
                .iter()
                .filter(|it| self.is_of_own(it, &own))
                .filter_map(container)
                .collect(),
            sandboxes: sandboxes.iter().filter_map(sandbox).collect(),
        })
    }

    /// The sandbox image, where the runtime reports it; older runtimes do not pin it themselves.
    pub async fn sandbox_image(&self) -> Result<Option<String>, Error> {
        let info = self.verbose_status().await?;
        Ok(info.get("config").and_then(|config| field(config, "sandboxImage")))
    }

    /// Storage directory of images; some path on that filesystem.
    pub async fn image_directory(&self) -> Result<PathBuf, Error> {
        let info = self.image_fs_info().await?;
        let place = info.image_filesystems.into_iter().find_map(|usage| usage.fs_id);
        let place = place.map(|id| id.mountpoint).filter(|path| !path.is_empty());
        place.map(PathBuf::from).ok_or_else(|| {
            Error::bad_reply("ImageFsInfo", "", "no image filesystem with a mountpoint")
        })
    }
}

fn images_of(container: &cri::Container) -> [&str; 3] {
    let image = container.image.as_ref().map_or("", |image| image.image.as_str());
    [&container.image_ref, &container.image_id, image]
}

fn container(listed: &cri::Container) -> Option<ListedContainer> {
    let (pod, _) = convert::owner(&listed.labels)?;
    Some(ListedContainer {
        id: ContainerId::new(listed.id.as_str()),
        pod,
        container: listed.metadata.as_ref()?.name.as_str().into(),
        sandbox: SandboxId::new(listed.pod_sandbox_id.as_str()),
        attempt: convert::attempt(&listed.annotations, listed.metadata.as_ref()),
        created: convert::nanos(listed.created_at)?,
        state: convert::listed_state(listed.state),
    })
}

fn sandbox(listed: &cri::PodSandbox) -> Option<ListedSandbox> {
    let (pod, _) = convert::owner(&listed.labels)?;
    Some(ListedSandbox {
        id: SandboxId::new(listed.id.as_str()),
        pod,
        attempt: listed.metadata.as_ref().map_or(0, |meta| meta.attempt),
        created: convert::sandbox_created(listed.created_at),
        ready: convert::sandbox_ready(listed.state),
    })
}

/// One string field of a JSON object, without parsing all of it: it contains the runtime's whole
/// configuration.
fn field(json: &str, name: &str) -> Option<String> {
    let (_, after) = json.split_once(&format!("\"{name}\""))?;
    let value = after.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (value, _) = value.split_once('"')?;
    (!value.is_empty() && !value.contains('\\')).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_image_is_read_from_the_runtime_configuration() {
        for (json, want) in [
            (
                r#"{"a":1,"sandboxImage":"localhost/podwright/pause:1","b":{}}"#,
                Some("localhost/podwright/pause:1"),
            ),
            (r#"{"sandboxImage" : "x" }"#, Some("x")),
            (r#"{"sandboxImage":""}"#, None),
            (r#"{"sandboxImage":{}}"#, None),
            (r#"{"sandboxImage":"cut"#, None),
            ("", None),
        ] {
            assert_eq!(field(json, "sandboxImage").as_deref(), want, "{json}");
        }
    }

    #[test]
    fn objects_without_owner_or_creation_time_are_ignored() {
        let labels = |uid: &str| {
            let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            [
                label("io.kubernetes.pod.uid", uid),
                label("io.kubernetes.pod.name", "p"),
                label("io.kubernetes.pod.namespace", "n"),
            ]
        };
        let whole = cri::Container {
            id: "c".into(),
            metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 0 }),
            created_at: 1,
            labels: labels("u").into(),
            ..Default::default()
        };
        assert!(container(&whole).is_some());
        let attempt = |annotations: &[(&str, &str)], attempt| {
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let metadata = Some(cri::ContainerMetadata { name: "app".into(), attempt });
            let annotations = annotations.iter().map(pair).collect();
            let listed = cri::Container { metadata, annotations, ..whole.clone() };
            container(&listed).map(|listed| listed.attempt)
        };
        assert_eq!(attempt(&[], 3), Some(3));
        assert_eq!(attempt(&[("io.kubernetes.container.restartCount", "7")], 3), Some(7));
        assert_eq!(attempt(&[("io.kubernetes.container.restartCount", "many")], 3), Some(3));
        assert_eq!(container(&cri::Container { created_at: 0, ..whole.clone() }), None);
        assert_eq!(container(&cri::Container { metadata: None, ..whole.clone() }), None);
        assert_eq!(container(&cri::Container { labels: labels("").into(), ..whole }), None);
    }
}
