//! `podwright images`: lists, loads, pulls and removes images of the node's runtime.

pub(super) mod list;
mod pull;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IsTerminal as _, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use podwright_core::labels;
use podwright_cri::{Client, Image};

use crate::cli::{ImageProgram, ImagesArgs, ImagesCommand};
use crate::printable::printable;
use crate::service;
use crate::standalone::agent::Agent;
use crate::standalone::containerd::find;
use crate::standalone::image_archive::{self, full_name};
use crate::standalone::runtime::Runtime;
use crate::standalone::supervisor::SupervisionNote;
use crate::standalone::{Layout, loaded_images};

/// How long the runtime may take to list an image after it was loaded.
const LISTED_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);
const API_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(arguments: &ImagesArgs) -> anyhow::Result<()> {
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let state = layout.state().display();
    let record = layout.record()?.with_context(|| {
        format!("no node was started in {state}. Fix: start it with podwright up")
    })?;
    let runtime = Runtime::of(&layout, &record)?;
    let reactor = service::runtime()?;
    if !reactor.block_on(runtime.is_up())? {
        bail!(not_running(&layout)?);
    }
    let node = ImageNode { layout: &layout, runtime: &runtime };
    match &arguments.command {
        ImagesCommand::Load { archives } => {
            for archive in archives {
                let (input, shown) = open(archive)?;
                let names = image_archive::load(&runtime.socket(), input, &shown)?;
                reactor.block_on(node.loaded(names, &shown))?;
            }
            Ok(())
        }
        ImagesCommand::Import { from, images } => {
            let (names, shown) = save(*from, images, &runtime.socket())?;
            reactor.block_on(node.loaded(names, &shown))
        }
        ImagesCommand::Pull { images } => reactor.block_on(async {
            let client = runtime.client()?;
            for image in images {
                pull::pull(&client, &full_name(image)).await?;
            }
            Ok(())
        }),
        ImagesCommand::List { output } => {
            reactor.block_on(async { list::print(&layout, &runtime.client()?, *output).await })
        }
        ImagesCommand::Remove { images } => reactor.block_on(node.remove(images)),
        ImagesCommand::Prune { loaded, dry_run } => reactor.block_on(node.prune(*loaded, *dry_run)),
    }
}

/// Why no runtime responds.
fn not_running(layout: &Layout) -> anyhow::Result<String> {
    let state = layout.state().display();
    let agent = Agent::of(layout).daemon().running()?.is_some();
    let note = SupervisionNote::read(layout).filter(|_| agent);
    Ok(match note.and_then(|note| note.problem(jiff::Timestamp::now())) {
        Some(problem) => {
            format!("the container runtime of the node in {state} is down: {problem}")
        }
        None => format!(
            "the container runtime of the node in {state} is not running. Fix: start it with \
             podwright up"
        ),
    })
}

fn open(archive: &Path) -> anyhow::Result<(Box<dyn Read>, String)> {
    if archive == Path::new("-") {
        let input = std::io::stdin();
        if input.is_terminal() {
            bail!(
                "the standard input is a terminal. Fix: docker save IMAGE | podwright images load -"
            );
        }
        return Ok((Box::new(input.lock()), "the archive from the standard input".to_owned()));
    }
    let shown = archive.display().to_string();
    let file = File::open(archive).with_context(|| format!("cannot read {shown}"))?;
    if file.metadata().is_ok_and(|found| found.is_dir()) {
        bail!("{shown} is a directory. Fix: tar -C {shown} -c . | podwright images load -");
    }
    Ok((Box::new(file), shown))
}

/// Loads images from another program, as an archive through a pipe.
fn save(
    from: ImageProgram,
    images: &[String],
    socket: &Path,
) -> anyhow::Result<(BTreeSet<String>, String)> {
    if let Some(option) = images.iter().find(|image| image.starts_with('-')) {
        bail!("{option} is not an image name");
    }
    let (name, options): (_, &[&str]) = match from {
        ImageProgram::Docker => ("docker", &["save"]),
        ImageProgram::Podman => ("podman", &["save", "--multi-image-archive"]),
    };
    let program = find(name)?.with_context(|| format!("{name} is not installed"))?;
    let mut child = Command::new(program)
        .args(options)
        .args(images)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let output = child.stdout.take().with_context(|| format!("{name} has no output"))?;
    let shown = format!("the archive of {name}");
    let loaded = image_archive::load(socket, output, &shown);
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    if !status.success() {
        // It printed the reason.
        let hint = match from {
            ImageProgram::Docker => "",
            ImageProgram::Podman => {
                ". Fix: for images of another user, podman save IMAGE | sudo podwright images load -"
            }
        };
        bail!("{name} cannot save {}{hint}", images.join(" "));
    }
    Ok((loaded?, shown))
}

/// The images of a node.
struct ImageNode<'a> {
    layout: &'a Layout,
    runtime: &'a Runtime<'a>,
}

impl ImageNode<'_> {
    /// Records loaded images and prints them once the runtime lists them.
    async fn loaded(&self, names: BTreeSet<String>, shown: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout();
        loaded_images::change(self.layout, &names, &BTreeSet::new())?;
        if names.is_empty() {
            writeln!(out, "loaded {}; it names no image, so pods cannot use it", printable(shown))?;
        }
        let client = self.runtime.client()?;
        for name in names {
            let deadline = tokio::time::Instant::now() + LISTED_TIMEOUT;
            let found = loop {
                let found = client.image_status(&name).await?;
                if found.is_some() || tokio::time::Instant::now() >= deadline {
                    break found;
                }
                tokio::time::sleep(POLL).await;
            };
            let size = found.map(|image| format!(" ({})", list::bytes(image.size)));
            let name = printable(&name);
            writeln!(out, "loaded {name}{}", size.unwrap_or_default())?;
            if name.ends_with(":latest") {
                writeln!(out, "  pods need imagePullPolicy: IfNotPresent or Never for it")?;
            }
        }
        Ok(())
    }

    async fn remove(&self, images: &[String]) -> anyhow::Result<()> {
        let client = self.runtime.client()?;
        for image in images {
            let found = client.image_status(image).await?;
            let found = found.with_context(|| format!("image {image} not found on this node"))?;
            if is_sandbox_image(&found) {
                bail!(
                    "{image} is the sandbox image of every pod on this node and cannot be removed"
                );
            }
            let users = pods_using(&client, &found).await?;
            if !users.is_empty() {
                bail!("{image} is in use by {}. Fix: delete these pods first", users.join(", "));
            }
            client.remove_image(image).await?;
            let removed = found.tags.iter().cloned().chain([image.clone()]).collect();
            loaded_images::change(self.layout, &BTreeSet::new(), &removed)?;
            writeln!(std::io::stdout(), "removed {image}")?;
        }
        Ok(())
    }

    async fn prune(&self, with_loaded: bool, dry_run: bool) -> anyhow::Result<()> {
        let client = self.runtime.client()?;
        // Before the images are listed: one that is pulled in between is not removed.
        let wanted = self.wanted_by_pods().await?;
        let loaded = loaded_images::read(self.layout)?;
        let images = client.list_images().await?;
        let containers = client.list_containers(None).await?;
        let used: BTreeSet<&str> =
            containers.iter().map(|container| container.image_ref.as_str()).collect();
        let (mut freed, mut removed) = (0_u64, BTreeSet::new());
        let mut out = std::io::stdout();
        for image in images {
            let keep = is_sandbox_image(&image)
                || image.pinned
                || used.contains(image.id.as_str())
                || image.names().any(|name| wanted.contains(name) || used.contains(name))
                || (!with_loaded && image.names().any(|name| loaded.contains(name)));
            if keep {
                continue;
            }
            let name = image.names().next().unwrap_or(&image.id);
            let what = if dry_run { "would remove" } else { "removed" };
            if !dry_run {
                client.remove_image(&image.id).await?;
                removed.extend(image.names().map(str::to_owned));
            }
            freed = freed.saturating_add(image.size);
            writeln!(out, "{what} {} ({})", printable(name), list::bytes(image.size))?;
        }
        loaded_images::change(self.layout, &BTreeSet::new(), &removed)?;
        let what = if dry_run { "would free" } else { "freed" };
        writeln!(out, "{what} {}, without what images share", list::bytes(freed))?;
        Ok(())
    }

    /// Images of all pods in the API, with and without containers. Without an agent only containers
    /// count: nothing starts pods.
    async fn wanted_by_pods(&self) -> anyhow::Result<BTreeSet<String>> {
        if Agent::of(self.layout).daemon().running()?.is_none() {
            return Ok(BTreeSet::new());
        }
        let read = async {
            let file = Kubeconfig::read_from(self.layout.kubeconfig())?;
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
            let client = kube::Client::try_from(config)?;
            anyhow::Ok(Api::<Pod>::all(client).list(&ListParams::default()).await?)
        };
        let pods = tokio::time::timeout(API_TIMEOUT, read)
            .await
            .context("the API server does not respond")
            .flatten()
            .context("cannot read which images pods need; nothing was removed")?;
        Ok(pods.items.iter().flat_map(images_of).map(|image| full_name(&image)).collect())
    }
}

/// The names in the spec of a pod.
fn images_of(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let regular = spec.containers.iter().filter_map(|it| it.image.clone());
    let init = spec.init_containers.iter().flatten().filter_map(|it| it.image.clone());
    let ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(|it| it.image.clone());
    regular.chain(init).chain(ephemeral).collect()
}

fn is_sandbox_image(image: &Image) -> bool {
    image.tags.iter().any(|tag| tag == podwright_pause::IMAGE)
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
