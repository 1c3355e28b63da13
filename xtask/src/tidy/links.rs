//! Check that links within the repository lead to a file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Finding, tree};

pub(super) fn lead_to_a_file(root: &Path, files: &[PathBuf]) -> anyhow::Result<Finding> {
    let mut faults = Vec::new();
    let (mut documents, mut links) = (0, 0);
    for document in files.iter().filter(|path| tree::has_extension(path, "md")) {
        let text = std::fs::read_to_string(root.join(document))
            .with_context(|| format!("cannot read {}", document.display()))?;
        documents += 1;
        for (line, target) in targets(&text) {
            let Some(path) = local(&target) else { continue };
            links += 1;
            // A leading slash means the root, as on the web page of the repository.
            let from = match path.strip_prefix('/') {
                Some(path) => root.join(path),
                None => root.join(document).parent().unwrap_or(root).join(path),
            };
            if !from.exists() {
                faults.push(format!("{}:{line}: {target} does not exist", document.display()));
            }
        }
    }
    let seen = format!("{links} links in {documents} documents");
    Ok(Finding { rule: "links between documents lead to a file", seen, faults })
}

/// The path of a link within the repository, without its anchor.
fn local(target: &str) -> Option<&str> {
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    let path = target.split(['#', '?']).next().unwrap_or_default();
    (!has_scheme && !target.starts_with("//") && !path.is_empty()).then_some(path)
}

/// Link targets of a document, each with its line: `[text](target)`, also of an image, `[name]:
/// target`, and the `src` and `href` of HTML. Code is ignored.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let line = without_code(line);
                found.extend(targets_of(&line).into_iter().map(|target| (number, target)));
            }
        }
    }
    found
}

fn targets_of(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for after in line.split(opening).skip(1) {
            let target = match after.strip_prefix('<') {
                Some(bracketed) => bracketed.split('>').next(),
                // A title may follow after a blank.
                None => after.split([closing, ' ']).next(),
            };
            found.extend(target.map(str::to_owned));
        }
    }
    let definition = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    if let Some((name, target)) = definition
        && !name.contains(']')
        && !name.starts_with('^')
    {
        found.extend(target.split_whitespace().next().map(str::to_owned));
    }
    found
}

/// Removes the text between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::repository;
    use super::*;

    #[test]
    fn links_are_found_in_text_and_not_in_code() {
        let text = "See [one](a.md) and ![two](img/b.svg \"title\"), [three](<c d.md>).\n\
                    ```sh\n[not](x.md)\n```\n\
                    `[nor](y.md)` but [four](d.md#part) <img src=\"e.svg\" width=\"3\">\n\
                    [five]: f.md\n\
                    [^note]: not a link\n";
        let want = [
            (1, "a.md"),
            (1, "img/b.svg"),
            (1, "c d.md"),
            (5, "d.md#part"),
            (5, "e.svg"),
            (6, "f.md"),
        ]
        .map(|(line, target)| (line, target.to_owned()));
        assert_eq!(targets(text), want);
    }

    #[test]
    fn only_links_within_the_repository_are_followed() {
        for (target, path) in [
            ("docs/a.md", Some("docs/a.md")),
            ("../b.md#part", Some("../b.md")),
            ("/c.md", Some("/c.md")),
            ("#part", None),
            ("https://example.com/x", None),
            ("mailto:a@example.com", None),
            ("//example.com/x", None),
            ("", None),
        ] {
            assert_eq!(local(target), path, "{target}");
        }
    }

    #[test]
    fn broken_link_is_a_fault_with_its_line() {
        let root = repository(&[
            ("README.md", "[a](docs/a.md)\n[b](docs/missing.md)\n[c](docs)\n"),
            ("docs/a.md", "[up](../README.md#top) [root](/README.md) [gone](README.md)\n"),
        ]);
        let files = tree::files(root.path()).unwrap();
        let finding = lead_to_a_file(root.path(), &files).unwrap();
        assert_eq!(
            finding.faults,
            [
                "README.md:2: docs/missing.md does not exist",
                "docs/a.md:1: README.md does not exist"
            ]
        );
        assert_eq!(finding.seen, "6 links in 2 documents");
    }
}
