//! Check that serialized names are written out and not derived from Rust names.
//!
//! A field is easily renamed, but what an earlier version wrote stays on disks for years. With the
//! serialized name spelled out at the field, a rename cannot change the format.

use std::path::Path;

use super::Finding;
use super::sources::Source;

/// Product crates. Crates that never ship may change their formats at any time.
const CRATES: &[&str] =
    &["proto", "core", "cri", "host", "http", "node", "apiserver", "pause", "podwright"];

/// Modules whose names follow from a published API by one rule (`camelCase`): a Rust name that
/// differs from Kubernetes' is a mistake there, found by comparison with upstream. None of their
/// types is read back from our own files.
const PUBLISHED: &[(&str, &str)] = &[
    ("crates/apiserver/src/access/rules.rs", "SelfSubjectRulesReview"),
    ("crates/apiserver/src/controllers/binding.rs", "parts of PersistentVolumeClaim"),
    ("crates/apiserver/src/controllers/dependents.rs", "parts of ObjectMeta"),
    ("crates/apiserver/src/discovery.rs", "APIResourceList and its relatives"),
    ("crates/apiserver/src/options.rs", "DeleteOptions"),
    ("crates/apiserver/src/selector.rs", "parts of Pod, Event and ObjectMeta"),
    ("crates/apiserver/src/status.rs", "Status"),
    ("crates/core/src/credential/docker.rs", "Docker's config.json"),
    ("crates/core/src/credential/provider.rs", "credential provider configuration"),
    ("crates/core/src/log/line.rs", "Docker's JSON log lines"),
    ("crates/core/src/stats.rs", "the summary API"),
    ("crates/node/src/server/pods.rs", "PodList"),
    ("crates/pause/src/oci.rs", "OCI image layout"),
    ("crates/podwright/src/config", "KubeletConfiguration and upstream's flags"),
    ("crates/podwright/src/standalone/runtime.rs", "containerd's verbose status"),
];

pub(super) fn are_explicit(sources: &[Source]) -> Finding {
    explicit_with(sources, PUBLISHED)
}

fn explicit_with(sources: &[Source], published: &[(&str, &str)]) -> Finding {
    let (mut types, mut faults) = (0, Vec::new());
    let mut used = vec![false; published.len()];
    for source in sources.iter().filter(|source| is_product(&source.path)) {
        let items = items(&source.code);
        let mut excused = false;
        for ((place, _), used) in published.iter().zip(&mut used) {
            if source.path.starts_with(place) && !items.is_empty() {
                (excused, *used) = (true, true);
            }
        }
        types += items.len();
        if excused {
            continue;
        }
        let path = source.path.display();
        faults.extend(items.iter().flat_map(Item::nameless).map(|(line, name)| {
            format!("{path}:{line}: name the field explicitly: #[serde(rename = \"{name}\")]")
        }));
    }
    let stale = published.iter().zip(used).filter(|(_, used)| !used);
    faults.extend(stale.map(|((place, _), _)| {
        format!("{place}: has no serialized type; remove it from the list")
    }));
    Finding {
        rule: "serialized fields and variants are named explicitly",
        seen: format!("{types} types"),
        faults,
    }
}

fn is_product(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    matches!(parts.as_slice(), ["crates", name, "src", ..] if CRATES.contains(name))
}

/// A type that derives `Serialize` or `Deserialize`.
#[derive(Debug)]
struct Item {
    /// Its attributes, without the content of strings.
    attributes: String,
    members: Vec<Member>,
}

/// A field, or a variant with its fields after it.
#[derive(Debug)]
struct Member {
    /// Counted from 1.
    line: usize,
    name: String,
    attributes: String,
    is_variant: bool,
}

impl Item {
    fn nameless(&self) -> impl Iterator<Item = (usize, &str)> {
        let converted = ["transparent", "into", "from", "try_from"];
        let converted = converted.iter().any(|word| has_word(&self.attributes, word));
        let untagged = has_word(&self.attributes, "untagged");
        let has_name = move |member: &&Member| !(member.is_variant && untagged);
        let members = self.members.iter().filter(move |_| !converted).filter(has_name);
        members.filter(|member| !member.is_named()).map(|it| (it.line, it.name.as_str()))
    }
}

impl Member {
    fn is_named(&self) -> bool {
        // A flattened or skipped field has no name in the format.
        ["rename", "flatten", "skip"].iter().any(|word| has_word(&self.attributes, word))
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// Types of a file that derive `Serialize` or `Deserialize`. The file is formatted by rustfmt,
/// which another check ensures: attributes, items and fields begin lines, and their content is
/// indented.
fn items(code: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut lines = (1..).zip(code.lines()).peekable();
    let mut attributes = String::new();
    while let Some((_, line)) = lines.next() {
        if collect(&mut attributes, line, &mut lines) {
            continue;
        }
        let attributes = std::mem::take(&mut attributes);
        let derived = ["Serialize", "Deserialize"].iter().any(|it| has_word(&attributes, it));
        let declared = without_visibility(line.trim_start());
        let is_enum = declared.starts_with("enum ");
        if !(derived && (is_enum || declared.starts_with("struct "))) {
            continue;
        }
        let end = format!("{}}}", " ".repeat(indent(line)));
        let mut members = Vec::new();
        if line.trim_end().ends_with('{') {
            let body: Vec<(usize, &str)> = lines.by_ref().take_while(|it| it.1 != end).collect();
            read_members(&body, indent(line) + 4, is_enum, &mut members);
        }
        items.push(Item { attributes, members });
    }
    items
}

/// Adds a line to the attributes of the next item, with its continuation lines. False if it is not
/// an attribute. Comments are already blanked out.
fn collect<'a>(
    attributes: &mut String,
    line: &str,
    rest: &mut impl Iterator<Item = (usize, &'a str)>,
) -> bool {
    let trimmed = line.trim();
    if !trimmed.starts_with("#[") {
        return trimmed.is_empty();
    }
    let open = |text: &str| text.matches('[').count() > text.matches(']').count();
    let begin = attributes.len();
    attributes.push_str(trimmed);
    while attributes.get(begin..).is_some_and(open) {
        let Some((_, line)) = rest.next() else { break };
        attributes.push_str(line);
    }
    true
}

fn read_members(body: &[(usize, &str)], depth: usize, variants: bool, members: &mut Vec<Member>) {
    let mut lines = body.iter().copied();
    let mut attributes = String::new();
    while let Some((number, line)) = lines.next() {
        // Deeper lines continue the member above.
        if indent(line) != depth && !line.trim().is_empty() {
            continue;
        }
        if collect(&mut attributes, line, &mut lines) {
            continue;
        }
        let declared = without_visibility(line.trim()).trim_start_matches("r#");
        let ident = declared.split(|c: char| !c.is_alphanumeric() && c != '_').next();
        let name = ident.unwrap_or_default().to_owned();
        let attributes = std::mem::take(&mut attributes);
        let rest = declared.get(name.len()..).unwrap_or_default();
        if name.is_empty() || !(variants || rest.starts_with(':')) {
            continue;
        }
        members.push(Member { line: number, name, attributes, is_variant: variants });
        if !variants {
            continue;
        }
        if rest.trim() == "{" {
            let end = format!("{}}}", " ".repeat(depth));
            let fields: Vec<_> = lines.by_ref().take_while(|it| !it.1.starts_with(&end)).collect();
            read_members(&fields, depth + 4, false, members);
        } else if let Some(fields) = rest.trim().strip_prefix('{') {
            // A one-line item cannot have attributes on its members.
            let fields = fields.split(',').filter_map(|field| field.split_once(':'));
            members.extend(fields.map(|(name, _)| Member {
                line: number,
                name: name.trim().to_owned(),
                attributes: String::new(),
                is_variant: false,
            }));
        }
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn without_visibility(declared: &str) -> &str {
    match declared.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(rest, |it| it.1),
        Some(rest) => rest.strip_prefix(' ').unwrap_or(declared),
        None => declared,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::super::tree::tests::repository;
    use super::super::{rust_text, sources};
    use super::*;

    fn nameless(source: &str) -> Vec<(usize, String)> {
        let items = items(&rust_text::code_only(source));
        let all = items.iter().flat_map(Item::nameless);
        all.map(|(line, name)| (line, name.to_owned())).collect()
    }

    #[test]
    fn fields_and_variants_without_a_name_are_found() {
        let source = r#"
/// A type.
#[derive(Clone, Serialize)]
#[serde(default)]
pub struct A<'a> {
    /// Named.
    #[serde(rename = "x", skip_serializing_if = "Option::is_none")]
    pub x: Option<u32>,
    #[serde(default)]
    // with a remark: for the reader
    pub(crate) y: Vec<
        u32,
    >,
    r#type: &'a str,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(
    Clone,
    serde::Deserialize,
)]
enum B {
    #[serde(rename = "one")]
    One,
    Two(
        String,
    ),
    #[serde(rename = "three")]
    Three { a: u32, b: u32 },
    #[serde(rename = "four")]
    Four {
        #[serde(rename = "c")]
        c: u32,
        d: u32,
    },
    Five,
}
"#;
        let want = [(11, "y"), (14, "type"), (26, "Two"), (30, "a"), (30, "b"), (35, "d")];
        let want = want.iter().chain(&[(37, "Five")]).map(|(line, it)| (*line, (*it).to_owned()));
        assert_eq!(nameless(source), want.collect::<Vec<_>>());
    }

    #[test]
    fn types_without_names_in_the_format_need_none() {
        for source in [
            "#[derive(Serialize)]\nstruct A(u32);\nstruct B {\n    b: u32,\n}\n",
            "#[derive(Serialize)]\n#[serde(transparent)]\nstruct A {\n    a: u32,\n}\n",
            "#[derive(Serialize)]\n#[serde(into = \"String\")]\nstruct A {\n    a: u32,\n}\n",
            "#[derive(Deserialize)]\n#[serde(untagged)]\nenum A {\n    B(u32),\n    C(String),\n}\n",
            "#[derive(Debug)]\nstruct A {\n    a: u32,\n}\n",
        ] {
            assert_eq!(nameless(source), [], "{source}");
        }
        let rule = "#[derive(Serialize)]\n#[serde(rename_all = \"camelCase\")]\nstruct A {\n    a: u32,\n}\n";
        assert_eq!(nameless(rule), [(4, "a".to_owned())], "a rename rule is not a name");
    }

    #[test]
    fn published_modules_are_excused_while_they_have_such_types() {
        let bare = "#[derive(Serialize)]\nstruct A {\n    a: u32,\n}\n";
        let root = repository(&[
            ("crates/core/src/a.rs", bare),
            ("crates/core/src/deep/b.rs", bare),
            ("crates/core/tests/c.rs", bare),
            ("crates/e2e/src/d.rs", bare),
        ]);
        let files = tree::files(root.path()).unwrap();
        let sources = sources::read(root.path(), &files).unwrap();
        let published = [("crates/core/src/deep", "why"), ("crates/core/src/gone.rs", "why")];
        let finding = explicit_with(&sources, &published);
        assert_eq!(finding.seen, "2 types");
        assert_eq!(
            finding.faults,
            [
                "crates/core/src/a.rs:3: name the field explicitly: #[serde(rename = \"a\")]",
                "crates/core/src/gone.rs: has no serialized type; remove it from the list",
            ]
        );
    }
}
