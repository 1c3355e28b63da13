//! `podwright why`: explains what a pod is waiting for, from the debug socket of the agent.

pub(super) mod agent;
pub(super) mod page;
pub(super) mod pending;

use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use podwright_core::plan::Case;
use podwright_node::server::debug_socket::{Explanation, NodeExplanation, PodLine};
use podwright_node::sources::problems::ManifestProblem;
use serde::Serialize;

use crate::cli::{Output, STATE_DIR, WhyArgs};
use crate::commands::objects::Objects;
use crate::config::options::ROOT_DIR;
use crate::service;
use crate::standalone::Layout;
use agent::Agent;

/// How many similar names are listed for an unknown pod.
const SUGGESTIONS: usize = 5;

pub fn run(arguments: &WhyArgs) -> anyhow::Result<()> {
    let roots = roots(arguments.root_dir.as_deref(), arguments.state_dir.as_deref())?;
    service::runtime()?.block_on(async {
        let agent = Agent::find(&roots).await?;
        let Some(query) = &arguments.pod else {
            let mut node: NodeExplanation = agent.ask("/node").await?;
            node.evictions = Some(agent.ask("/evictions").await?);
            return print(arguments.output, &node, page::node_text);
        };
        let pods: Vec<PodLine> = agent.ask("/pods").await?;
        let found = match resolve(&pods, query) {
            Ok(found) => found,
            Err(unknown) => return elsewhere(&agent, arguments, query, unknown).await,
        };
        let uid = &found.uid;
        let explanation: Explanation = agent.ask(&format!("/pods/{uid}/why")).await?;
        print(arguments.output, &explanation, page::text)?;
        if let Some(file) = &arguments.record {
            let case: Case = agent.ask(&format!("/pods/{uid}/case")).await?;
            record(&case, file)?;
            let shown = file.display();
            writeln!(
                std::io::stderr(),
                "recorded with secrets masked; replay with podwright plan {shown}"
            )?;
        }
        Ok(())
    })
}

/// Explains what the agent does not have: a pending pod of the API, a manifest without a pod.
async fn elsewhere(
    agent: &Agent,
    arguments: &WhyArgs,
    query: &str,
    unknown: anyhow::Error,
) -> anyhow::Result<()> {
    let manifests: Vec<ManifestProblem> = agent.ask("/manifests").await?;
    if let Some(problem) = manifests.iter().find(|problem| names_manifest(problem, query)) {
        let page = |problem: &ManifestProblem| page::manifest_page(problem, Timestamp::now());
        return print(arguments.output, problem, page);
    }
    let Some(layout) = Layout::of_root(agent.root()) else { return Err(unknown) };
    let Ok(objects) = Objects::read(&layout.kubeconfig()).await else { return Err(unknown) };
    let lines = pending::lines(&objects);
    // The list of the API is complete, so the error names similar pods of both.
    let uid = &resolve(&lines, query)?.uid;
    let Some(explanation) = pending::explain(&objects, uid, Timestamp::now()) else {
        return Err(unknown);
    };
    print(arguments.output, &explanation, page::text)
}

/// Whether a query is the path of a manifest, its file name, or that without the extension.
fn names_manifest(problem: &ManifestProblem, query: &str) -> bool {
    let file = Path::new(&problem.file);
    let query = Path::new(query);
    [Some(file.as_os_str()), file.file_name(), file.file_stem()]
        .into_iter()
        .flatten()
        .any(|name| name == query.as_os_str())
}

fn print<T: Serialize>(
    output: Output,
    value: &T,
    page: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(value)?)?,
        Output::Text => write!(out, "{}", page(value))?,
    }
    Ok(())
}

/// The root directories in which an agent may respond.
pub(super) fn roots(
    root_dir: Option<&Path>,
    state_dir: Option<&Path>,
) -> anyhow::Result<Vec<PathBuf>> {
    Ok(match (root_dir, state_dir) {
        (Some(root), _) => vec![std::path::absolute(root)?],
        (None, Some(state)) => vec![Layout::new(&std::path::absolute(state)?).root_dir()],
        (None, None) => default_roots(),
    })
}

/// Default root directories of an agent.
fn default_roots() -> Vec<PathBuf> {
    vec![PathBuf::from(ROOT_DIR), Layout::new(Path::new(STATE_DIR)).root_dir()]
}

fn record(case: &Case, file: &Path) -> anyhow::Result<()> {
    write_new(file, &format!("{}\n", serde_json::to_string_pretty(case)?))
}

/// Writes a new file that only this user can read. An existing one, or a link, may be another
/// user's: root must not write to it.
fn write_new(file: &Path, text: &str) -> anyhow::Result<()> {
    let created = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = created.and_then(|mut created| created.write_all(text.as_bytes()));
    written.map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::AlreadyExists => ". Fix: give the name of a new file with --record",
            _ => "",
        };
        anyhow::Error::new(error).context(format!("cannot write {}{fix}", file.display()))
    })
}

/// Finds the pod by name, NAMESPACE/NAME, manifest name or UID.
fn resolve<'a>(pods: &'a [PodLine], query: &str) -> anyhow::Result<&'a PodLine> {
    let has_name = |pod: &PodLine, name: &str| {
        pod.name == name || pod.manifest.as_deref().is_some_and(|manifest| manifest == name)
    };
    let matches = |pod: &&PodLine| match query.split_once('/') {
        Some((namespace, name)) => pod.namespace == namespace && has_name(pod, name),
        None => has_name(pod, query) || pod.uid == query || pod.mirror.as_deref() == Some(query),
    };
    let found: Vec<&PodLine> = pods.iter().filter(matches).collect();
    match found.as_slice() {
        [pod] => Ok(pod),
        [] => anyhow::bail!("{}", unknown(pods, query)),
        many => {
            let list: Vec<String> =
                many.iter().map(|pod| format!("{} ({})", full_name(pod), pod.uid)).collect();
            anyhow::bail!("{query} is ambiguous; use NAMESPACE/NAME or UID: {}", list.join(", "))
        }
    }
}

fn full_name(pod: &PodLine) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn unknown(pods: &[PodLine], query: &str) -> String {
    if pods.is_empty() {
        return format!("no pod {query} on this node; it has no pods");
    }
    let similarity = |pod: &PodLine| {
        let names = [full_name(pod), pod.name.clone(), pod.manifest.clone().unwrap_or_default()];
        names.iter().map(|name| strsim::jaro_winkler(name, query)).fold(0.0, f64::max)
    };
    let mut near: Vec<&PodLine> = pods.iter().collect();
    near.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)));
    let near: Vec<String> = near.into_iter().take(SUGGESTIONS).map(full_name).collect();
    let rest = pods.len().saturating_sub(near.len());
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("no pod {query} on this node; it has {}{more}", near.join(", "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str, manifest: Option<&str>, uid: &str) -> PodLine {
        PodLine {
            namespace: namespace.into(),
            name: name.into(),
            manifest: manifest.map(Into::into),
            uid: uid.into(),
            mirror: manifest.map(|_| format!("{uid}-mirror")),
        }
    }

    #[test]
    fn record_is_private_and_never_written_through_a_link_or_over_a_file() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("case.json");
        write_new(&file, "a case\n").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let link = directory.path().join("link.json");
        let target = directory.path().join("target");
        symlink(&target, &link).unwrap();
        for existing in [&file, &link] {
            let refused = format!("{:#}", write_new(existing, "other").unwrap_err());
            assert!(refused.contains("Fix: give the name of a new file"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a case\n");
        assert!(!target.exists());
    }

    #[test]
    fn broken_manifest_is_found_by_its_path_and_name() {
        let problem = ManifestProblem {
            file: "/etc/manifests/web.yaml".into(),
            line: None,
            error: "no image".into(),
            effect: podwright_node::sources::problems::ManifestEffect::Ignored,
            since: Timestamp::UNIX_EPOCH,
        };
        for (query, found) in [
            ("web", true),
            ("web.yaml", true),
            ("/etc/manifests/web.yaml", true),
            ("we", false),
            ("", false),
        ] {
            assert_eq!(names_manifest(&problem, query), found, "{query}");
        }
    }

    #[test]
    fn pod_is_found_by_any_of_its_names() {
        let pods = [
            pod("default", "web", None, "u1"),
            pod("shop", "web", None, "u2"),
            pod("default", "proxy-node1", Some("proxy"), "u3"),
        ];
        for (query, want) in [
            ("default/web", Some("u1")),
            ("shop/web", Some("u2")),
            ("u2", Some("u2")),
            ("proxy", Some("u3")),
            ("proxy-node1", Some("u3")),
            ("default/proxy", Some("u3")),
            ("u3-mirror", Some("u3")),
            ("web", None),
            ("shop/proxy", None),
        ] {
            let found = resolve(&pods, query).ok().map(|pod| pod.uid.as_str());
            assert_eq!(found, want, "{query}");
        }
        let ambiguous = resolve(&pods, "web").unwrap_err().to_string();
        assert!(ambiguous.contains("shop/web (u2)"), "{ambiguous}");
    }

    #[test]
    fn unknown_name_lists_similar_pods() {
        let mut pods: Vec<PodLine> =
            (0..8).map(|n| pod("default", &format!("worker-{n}"), None, &n.to_string())).collect();
        pods.push(pod("shop", "checkout", None, "c"));
        let text = unknown(&pods, "chekcout");
        assert!(text.starts_with("no pod chekcout on this node; it has shop/checkout, "), "{text}");
        assert!(text.ends_with(" and 4 more"), "{text}");
        assert_eq!(unknown(&[], "web"), "no pod web on this node; it has no pods");
    }
}
