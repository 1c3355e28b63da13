//! `podwright why`: explains what a pod is waiting for, from the debug socket of the agent.

mod agent;
mod page;

use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use podwright_core::plan::Case;
use podwright_node::server::debug_socket::{Explanation, PodLine};

use crate::cli::{Output, STATE_DIR, WhyArgs};
use crate::config::options::ROOT_DIR;
use crate::service;
use crate::standalone::Layout;
use agent::Agent;

/// How many similar names are listed for an unknown pod.
const SUGGESTIONS: usize = 5;

pub fn run(arguments: &WhyArgs) -> anyhow::Result<()> {
    let roots = match (&arguments.root_dir, &arguments.state_dir) {
        (Some(root), _) => vec![std::path::absolute(root)?],
        (None, Some(state)) => vec![Layout::new(&std::path::absolute(state)?).root_dir()],
        (None, None) => default_roots(),
    };
    service::runtime()?.block_on(async {
        let agent = Agent::find(&roots).await?;
        let pods: Vec<PodLine> = agent.ask("/pods").await?;
        let uid = &resolve(&pods, &arguments.pod)?.uid;
        let explanation: Explanation = agent.ask(&format!("/pods/{uid}/why")).await?;
        let mut out = std::io::stdout();
        match arguments.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&explanation)?)?,
            Output::Text => write!(out, "{}", page::text(&explanation))?,
        }
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
