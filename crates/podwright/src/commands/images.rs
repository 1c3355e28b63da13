//! `podwright images`: lists, loads and removes images of the node's runtime.

use std::io::Write;

use anyhow::Context;
use podwright_core::labels;
use podwright_cri::{Client, Image};

use crate::cli::{ImagesArgs, ImagesCommand};
use crate::printable::printable;
use crate::service;
use crate::standalone::Layout;
use crate::standalone::containerd::load;
use crate::standalone::runtime::Runtime;

pub fn run(arguments: &ImagesArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let no_node = || {
        let state = layout.state().display();
        format!("no node is running in {state}. Fix: start it with podwright up")
    };
    let record = layout.record()?.with_context(no_node)?;
    let runtime = Runtime::of(&layout, &record)?;
    if !service::runtime()?.block_on(runtime.is_up())? {
        anyhow::bail!(no_node());
    }
    match &arguments.command {
        ImagesCommand::Load { archives } => {
            for archive in archives {
                load(&runtime.socket(), archive)?;
                writeln!(std::io::stdout(), "loaded {}", archive.display())?;
            }
            Ok(())
        }
        ImagesCommand::List => {
            let images = service::runtime()?
                .block_on(async { anyhow::Ok(runtime.client()?.list_images().await?) })?;
            let mut out = std::io::stdout();
            for image in images {
                let mega = image.size / 1_000_000;
                for tag in &image.tags {
                    writeln!(out, "{}  {mega} MB", printable(tag))?;
                }
            }
            Ok(())
        }
        ImagesCommand::Remove { images } => service::runtime()?.block_on(async {
            let client = runtime.client()?;
            for image in images {
                let found = client.image_status(image).await?;
                let found = found.with_context(|| format!("image {image} not found on this node"))?;
                if found.tags.iter().any(|tag| tag == podwright_pause::IMAGE) {
                    anyhow::bail!("{image} is the sandbox image of every pod on this node and cannot be removed");
                }
                let users = pods_using(&client, &found).await?;
                if !users.is_empty() {
                    anyhow::bail!("{image} is in use by {}. Fix: delete these pods first", users.join(", "));
                }
                client.remove_image(image).await?;
                writeln!(std::io::stdout(), "removed {image}")?;
            }
            Ok(())
        }),
    }
}

/// Pods with a container that uses the image, running or not.
async fn pods_using(client: &Client, image: &Image) -> anyhow::Result<Vec<String>> {
    let containers = client.list_containers(None).await?;
    let mut pods: Vec<String> = containers
        .iter()
        .filter(|container| container.image_ref == image.id)
        .filter_map(|container| {
            let label = |name: &str| container.labels.get(name);
            Some(format!("{}/{}", label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?))
        })
        .collect();
    pods.sort_unstable();
    pods.dedup();
    Ok(pods)
}
