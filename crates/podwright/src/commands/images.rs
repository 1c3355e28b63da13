//! `podwright images`: what the private runtime has, and adding to it without a registry.

use std::io::Write;

use anyhow::Context;

use crate::cli::{ImagesArgs, ImagesCommand};
use crate::service;
use crate::standalone::Layout;
use crate::standalone::containerd::Containerd;

pub fn run(arguments: &ImagesArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let containerd = Containerd::new(&layout);
    containerd.daemon().running()?.with_context(|| {
        format!("no node runs in {}; podwright up starts one", layout.state().display())
    })?;
    match &arguments.command {
        ImagesCommand::Load { archives } => {
            for archive in archives {
                containerd.load(archive)?;
                writeln!(std::io::stdout(), "loaded {}", archive.display())?;
            }
            Ok(())
        }
        ImagesCommand::List => {
            let images = service::runtime()?
                .block_on(async { anyhow::Ok(containerd.client()?.list_images().await?) })?;
            let mut out = std::io::stdout();
            for image in images {
                let mega = image.size / 1_000_000;
                for tag in &image.tags {
                    writeln!(out, "{tag}  {mega} MB")?;
                }
            }
            Ok(())
        }
    }
}
