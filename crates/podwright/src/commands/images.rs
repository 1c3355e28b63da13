//! `podwright images`: what the node's runtime has, and adding to it without a registry.

use std::io::Write;

use anyhow::Context;
use podwright_core::labels;
use podwright_cri::{Client, Image};

use crate::cli::{ImagesArgs, ImagesCommand};
use crate::service;
use crate::standalone::Layout;
use crate::standalone::containerd::load;
use crate::standalone::runtime::Runtime;

pub fn run(arguments: &ImagesArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let nothing =
        || format!("no node runs in {}; podwright up starts one", layout.state().display());
    let record = layout.record()?.with_context(nothing)?;
    let runtime = Runtime::of(&layout, &record)?;
    if !service::runtime()?.block_on(runtime.is_up())? {
        anyhow::bail!(nothing());
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
                    writeln!(out, "{tag}  {mega} MB")?;
                }
            }
            Ok(())
        }
        ImagesCommand::Remove { images } => service::runtime()?.block_on(async {
            let client = runtime.client()?;
            for image in images {
                let known = client.image_status(image).await?;
                let known = known.with_context(|| format!("there is no image {image} here"))?;
                if known.tags.iter().any(|tag| tag == podwright_pause::IMAGE) {
                    anyhow::bail!("{image} is what every pod of this node stands on");
                }
                let users = pods_with(&client, &known).await?;
                if !users.is_empty() {
                    anyhow::bail!("{image} is used by {}; delete them first", users.join(", "));
                }
                client.remove_image(image).await?;
                writeln!(std::io::stdout(), "removed {image}")?;
            }
            Ok(())
        }),
    }
}

/// The pods with a container of an image, running or not.
async fn pods_with(client: &Client, image: &Image) -> anyhow::Result<Vec<String>> {
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
