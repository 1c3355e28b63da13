//! Checks of words: plain words in messages, and the form of commit subjects.
//!
//! Why only messages: users search for them and match on them. Names and comments are left to
//! review, where a false alarm costs less.

use std::path::Path;
use std::process::Command;

use super::Finding;
use super::rust_text::{self, Token};
use super::sources::{self, Source};

/// Words that do not belong in a message, and what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("believes", "assumes"),
    ("folder", "directory"),
    ("folders", "directories"),
    ("in vain", "without effect"),
    ("last words", "termination message"),
    ("lately", "recently"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mends", "fixes"),
    ("nobody", "what is missing, such as: no client"),
    ("obituary", "termination cause"),
    ("somebody", "the client, user or process"),
    ("told", "sent, reported or configured"),
    ("way out", "fix"),
    ("whoever", "the client, user or process"),
    ("whomever", "the client, user or process"),
];

/// Phrases in which these words are right, each with its reason. Texts that come from upstream and
/// must stay as they are belong here, too.
const ALLOWED: &[(&str, &str)] = &[
    ("user nobody", "the unprivileged user of the system"),
    ("uid nobody", "the unprivileged user of the system"),
];

/// Macros that log, print, panic or make an error.
const MACROS: &[&str] = &[
    "anyhow",
    "bail",
    "debug",
    "ensure",
    "eprint",
    "eprintln",
    "error",
    "info",
    "panic",
    "print",
    "println",
    "todo",
    "trace",
    "unimplemented",
    "unreachable",
    "warn",
    "write",
    "writeln",
];

/// Methods that take a message.
const METHODS: &[&str] = &["context", "expect", "fix", "with_context"];

/// Commits are checked from the one after that which added this file.
const SINCE: &str = "xtask/src/tidy/words.rs";

const SUBJECT_LENGTH: usize = 72;

pub(super) fn in_messages(sources: &[Source]) -> Finding {
    let (mut messages, mut faults) = (0, Vec::new());
    for Source { path, text, .. } in sources.iter().filter(|source| is_checked(&source.path)) {
        for (line, literal) in messages_of(without_tests(text)) {
            messages += 1;
            faults.extend(unwanted(literal).into_iter().map(|(word, instead)| {
                format!("{}:{line}: {word:?} in a message; write: {instead}", path.display())
            }));
        }
    }
    Finding { rule: "messages use plain words", seen: format!("{messages} messages"), faults }
}

fn is_checked(path: &Path) -> bool {
    sources::ships(path) && !path.with_extension("").iter().any(|part| part == "tests")
}

/// The source up to its test module, which is the last item of a file.
fn without_tests(text: &str) -> &str {
    let is_attribute = |line: &&str| line.trim_start().starts_with("#[");
    for (at, _) in text.match_indices("#[cfg(test)]\n") {
        let (before, after) = text.split_at(at);
        let item = after.lines().find(|line| !is_attribute(line));
        if item.is_some_and(|line| line.contains("mod ") && line.ends_with('{')) {
            return before;
        }
    }
    text
}

/// String literals in messages, each with its line.
fn messages_of(source: &str) -> Vec<(usize, &str)> {
    let mut messages = Vec::new();
    // For each open bracket: whether it is in a message.
    let mut open: Vec<bool> = Vec::new();
    let mut before = [None; 3];
    for (line, token) in rust_text::tokens(source) {
        let inside = open.last().copied().unwrap_or_default();
        match token {
            Token::Mark('(' | '[' | '{') => open.push(inside || opens_message(&before)),
            Token::Mark(')' | ']' | '}') => {
                open.pop();
            }
            Token::Text(text) if inside => messages.push((line, text)),
            Token::Mark(_) | Token::Text(_) | Token::Word(_) => {}
        }
        let [_, second, third] = before;
        before = [second, third, Some(token)];
    }
    messages
}

/// Whether a bracket after these tokens begins the arguments of a message: `info!(`, `.context(`,
/// `#[error(`.
fn opens_message(before: &[Option<Token<'_>>; 3]) -> bool {
    match before {
        [_, Some(Token::Word(name)), Some(Token::Mark('!'))] => MACROS.contains(name),
        [_, Some(Token::Mark('.')), Some(Token::Word(name))] => METHODS.contains(name),
        [Some(Token::Mark('#')), Some(Token::Mark('[')), Some(Token::Word(name))] => {
            *name == "error"
        }
        _ => false,
    }
}

/// The entries of [`WORDS`] that a literal contains.
fn unwanted(literal: &str) -> Vec<(&'static str, &'static str)> {
    let mut text = words_of(literal);
    for (phrase, _) in ALLOWED {
        text = text.replace(&format!(" {phrase} "), " ");
    }
    let found = |word: &str| text.contains(&format!(" {word} "));
    WORDS.iter().copied().filter(|(word, _)| found(word)).collect()
}

/// The words of a literal in lower case, with a blank before and after each. Placeholders such as
/// `{told}` are names of variables and left out.
fn words_of(literal: &str) -> String {
    // A line that is continued, and a new line.
    let literal = literal.replace("\\\n", " ").replace("\\n", " ");
    let mut depth = 0_usize;
    let plain: String = literal
        .chars()
        .map(|c| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ if depth == 0 && (c.is_alphanumeric() || c == '_') => {
                    return c.to_ascii_lowercase();
                }
                _ => {}
            }
            ' '
        })
        .collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    format!(" {} ", words.join(" "))
}

pub(super) fn in_commit_subjects(root: &Path) -> Finding {
    let rule = "commit subjects have a scope and at most 72 characters";
    let Some(subjects) = subjects(root) else {
        let seen = "not checked: git or its history is not available".to_owned();
        return Finding { rule, seen, faults: Vec::new() };
    };
    let faults = subjects.iter().filter_map(|(hash, subject)| {
        subject_fault(subject).map(|fault| format!("{hash} {subject:?}: {fault}"))
    });
    Finding { rule, seen: format!("{} commits", subjects.len()), faults: faults.collect() }
}

/// Hash and subject of every commit after the one that added this check; `None` without git or a
/// repository of it.
fn subjects(root: &Path) -> Option<Vec<(String, String)>> {
    // An exported tree may lie within another repository.
    if !root.join(".git").exists() {
        return None;
    }
    let added = git(root, &["log", "--diff-filter=A", "--format=%H", "--", SINCE])?;
    let Some(first) = added.lines().last() else { return Some(Vec::new()) };
    let range = format!("{first}..HEAD");
    let log = git(root, &["log", "--no-merges", "--format=%h %s", &range])?;
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    Some(commits.map(|(hash, subject)| (hash.to_owned(), subject.to_owned())).collect())
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is wrong with a subject. Right ones: `status: keep the message`, `cri, host: name it`.
fn subject_fault(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT_LENGTH {
        return Some(format!("{length} characters; shorten it to {SUBJECT_LENGTH}"));
    }
    let is_part = |c: char| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.' | '/')
    };
    let is_scope =
        |scope: &str| scope.split(' ').all(|word| !word.is_empty() && word.chars().all(is_part));
    let well_formed = subject.split_once(": ").is_some_and(|(scopes, summary)| {
        scopes.split(", ").all(is_scope) && !summary.trim().is_empty()
    });
    (!well_formed).then(|| "write it as: scope: summary, with a lower-case scope".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::super::tree::tests::repository;
    use super::*;

    #[test]
    fn messages_are_found_in_macros_methods_and_error_attributes() {
        let source = r#"
#[error("one {0}")]
fn f() -> anyhow::Result<()> {
    let data = "no";
    tracing::warn!(pod = %name, kind = kind("two"), "three");
    other!("no");
    read().with_context(|| format!("four {}", name))?;
    bail!(if short { "five" } else { 'x' });
    // info!("no")
    error("no");
    #[cfg(feature = "no")]
    Ok(())
}
"#;
        let found: Vec<(usize, &str)> = messages_of(source);
        let want = [
            (2, "\"one {0}\""),
            (5, "\"two\""),
            (5, "\"three\""),
            (7, "\"four {}\""),
            (8, "\"five\""),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn words_are_matched_whole_and_in_any_case() {
        for (literal, want) in [
            (r#""{0}: Folder is missing""#, vec!["folder"]),
            (r#""nobody's; told\nanew""#, vec!["anew", "nobody", "told"]),
            ("\"stopped in \\\n    vain\"", vec!["in vain"]),
            (r##"r#"no way out"#"##, vec!["way out"]),
            (r#""subfolder {told} {folder:?} nobody_else amend""#, vec![]),
            (r#""{{folder}}""#, vec![]),
            (r#""runs as user nobody""#, vec![]),
            (r#""user nobody is somebody""#, vec!["somebody"]),
        ] {
            let found: Vec<&str> = unwanted(literal).iter().map(|(word, _)| *word).collect();
            assert_eq!(found, want, "{literal}");
        }
    }

    #[test]
    fn only_product_code_is_checked() {
        let bad = "fn f() { panic!(\"whoever\") }\n";
        let tested = format!("{bad}\n#[cfg(test)]\nmod tests {{\n{bad}}}\n");
        let declared = format!("#[cfg(test)]\nmod tests;\n\n{bad}");
        let root = repository(&[
            ("crates/a/src/a.rs", &tested),
            ("crates/a/src/b.rs", &declared),
            ("crates/a/src/a/tests.rs", bad),
            ("crates/a/src/a/tests/more.rs", bad),
            ("crates/a/tests/c.rs", bad),
        ]);
        let files = tree::files(root.path()).unwrap();
        let finding = in_messages(&sources::read(root.path(), &files).unwrap());
        let fault = "\"whoever\" in a message; write: the client, user or process";
        assert_eq!(
            finding.faults,
            [format!("crates/a/src/a.rs:1: {fault}"), format!("crates/a/src/b.rs:4: {fault}")]
        );
        assert_eq!(finding.seen, "2 messages");
    }

    #[test]
    fn subject_needs_a_scope_and_fits_72_characters() {
        let fits = format!("host: {}", "x".repeat(66));
        let long = format!("{fits}x");
        for (subject, right) in [
            ("status: keep termination message across agent restart", true),
            ("cri, standalone: leave another node's pods alone", true),
            ("pod worker: stop once", true),
            (fits.as_str(), true),
            (long.as_str(), false),
            ("keep the message", false),
            ("Status: keep the message", false),
            ("status:keep the message", false),
            ("status: ", false),
            ("a,b: keep the message", false),
            (", a: keep the message", false),
            ("", false),
        ] {
            assert_eq!(subject_fault(subject).is_none(), right, "{subject:?}");
        }
    }

    #[test]
    fn commits_are_checked_from_the_one_after_the_check_was_added() {
        let root = repository(&[(SINCE, "")]);
        assert!(in_commit_subjects(root.path()).seen.starts_with("not checked"), "no repository");
        let git = |arguments: &[&str]| git(root.path(), arguments).expect("git");
        let commit = |subject: &str| {
            git(&[
                "-c",
                "user.name=Test",
                "-c",
                "user.email=test@localhost",
                "-c",
                "commit.gpgsign=false",
                "commit",
                "--quiet",
                "--allow-empty",
                "--message",
                subject,
            ])
        };
        git(&["init", "--quiet"]);
        commit("Before the check");
        assert_eq!(in_commit_subjects(root.path()).seen, "0 commits");
        git(&["add", "."]);
        commit("The check itself");
        commit("words: follow the form");
        commit("Something else");
        let finding = in_commit_subjects(root.path());
        assert_eq!(finding.seen, "2 commits");
        assert_eq!(finding.faults.len(), 1);
        assert!(finding.faults[0].contains("\"Something else\": write it as"), "{finding:?}");
    }
}
