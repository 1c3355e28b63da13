//! Console transcripts: commands with the output that they must have.
//!
//! A transcript is Markdown. In its `console` blocks a line with `$ ` is a command, lines with `> `
//! after it continue it as a shell's second prompt does, and the lines below are expected output:
//! each must be a line of it, in this order, with any others between. `…` stands for any text.

/// A command and what it must print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Line of the transcript, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) output: Vec<String>,
}

/// The commands of the `console` blocks.
pub(crate) fn commands(markdown: &str) -> Vec<Command> {
    let (mut commands, mut inside) = (Vec::<Command>::new(), false);
    for (line, text) in (1..).zip(markdown.lines()) {
        if let Some(language) = text.strip_prefix("```") {
            inside = language == "console";
            continue;
        }
        if !inside {
            continue;
        }
        if let Some(command) = text.strip_prefix("$ ") {
            let text = command.to_owned();
            commands.push(Command { line, text, output: Vec::new() });
            continue;
        }
        let command = commands.last_mut().expect("a block begins with a command");
        match text.strip_prefix("> ").or_else(|| text.strip_prefix('>')) {
            Some(more) if command.output.is_empty() => {
                command.text.push('\n');
                command.text.push_str(more);
            }
            Some(_) | None => command.output.push(text.to_owned()),
        }
    }
    commands
}

/// The first expected line that the output does not have.
pub(crate) fn missing<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    expected.iter().map(String::as_str).find(|pattern| !lines.any(|line| matches(pattern, line)))
}

/// Whether the line is the pattern, with `…` for any text; space at the end does not count.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.trim_end().split('…');
    let line = line.trim_end();
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn transcript_is_read_and_compared_line_by_line() {
    let text = "# Title\n```sh\n$ not this\n```\n```console\n$ cat <<'END'\n> a\n>\n> END\na\n\
                b …\n$ true\n```\n";
    let commands = commands(text);
    assert_eq!(commands[0].text, "cat <<'END'\na\n\nEND");
    assert_eq!(commands[0].output, ["a", "b …"]);
    assert_eq!((commands[1].text.as_str(), commands[1].line), ("true", 12));
    for (pattern, line, same) in [
        ("a", "a", true),
        ("a", "a  ", true),
        ("a", "ab", false),
        ("a…", "ab", true),
        ("…b", "ab", true),
        ("a…c…e", "a b c d e", true),
        ("a…c…e", "a b d e", false),
        ("…", "", true),
        ("a…b", "ab", true),
        ("ab…b", "ab", false),
    ] {
        assert_eq!(matches(pattern, line), same, "{pattern:?} {line:?}");
    }
    let expected = ["one".to_owned(), "t…".to_owned()];
    assert_eq!(missing(&expected, "zero\none\nand\ntwo\n"), None);
    assert_eq!(missing(&expected, "two\none\n"), Some("t…"));
}
