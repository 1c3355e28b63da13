//! Terminal session rendered as SVG, from commands that are really run.
//!
//! Why not a recording tool: the output is plain text on a plain background, and an image that can
//! be regenerated with the repository alone stays correct.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

const COLUMN: f32 = 8.4;
const LINE: usize = 20;
const MARGIN: usize = 16;
const TITLE: usize = 34;
/// Longer lines are cut, as in a narrow window.
const COLUMNS: usize = 100;

/// Runs each line of `session` with a shell and draws commands and output. A line that begins with
/// `#` is a comment; one that begins with `@` is run but not shown.
pub(crate) fn draw(session: &Path, out: &Path) -> Result<()> {
    let script = fs::read_to_string(session)
        .with_context(|| format!("cannot read the session {}", session.display()))?;
    let mut lines = Vec::new();
    for command in script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let hidden = command.strip_prefix('@');
        let output = run(hidden.unwrap_or(command))?;
        if hidden.is_none() {
            lines.push(Line::Typed(command.to_owned()));
            lines.extend(output.lines().map(|line| Line::Printed(plain(line))));
        }
    }
    fs::write(out, svg(&lines)).with_context(|| format!("writing {}", out.display()))
}

/// Draws a screen, such as the snapshot of a full-screen view.
pub(crate) fn draw_screen(screen: &Path, out: &Path) -> Result<()> {
    let text = fs::read_to_string(screen)
        .with_context(|| format!("cannot read the screen {}", screen.display()))?;
    fs::write(out, svg(&screen_lines(&text))).with_context(|| format!("writing {}", out.display()))
}

fn screen_lines(text: &str) -> Vec<Line> {
    text.lines().map(|line| Line::Printed(plain(line))).collect()
}

enum Line {
    Typed(String),
    Printed(String),
}

fn run(command: &str) -> Result<String> {
    let shell = format!("exec 2>&1; {command}");
    let output = Command::new("sh").args(["-c", &shell]).output().context("running sh")?;
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?} ended with {}: {output_text}", output.status);
    }
    Ok(output_text)
}

/// Removes colours and other control sequences.
fn plain(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            // A control sequence ends with its first letter.
            '\u{1b}' => drop(rest.find(char::is_ascii_alphabetic)),
            '\t' => plain.push_str("    "),
            other if other.is_control() => {}
            other => plain.push(other),
        }
    }
    plain
}

fn svg(lines: &[Line]) -> String {
    let longest = lines.iter().map(|line| line.length().min(COLUMNS)).max().unwrap_or(0);
    // Truncation is fine: one pixel more or less does not matter.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    let width = (longest as f32 * COLUMN) as usize + 2 * MARGIN;
    let height = TITLE + lines.len() * LINE + MARGIN;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
<style>text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; fill: #c9d1d9 }} .typed {{ fill: #f0f6fc; font-weight: 600 }} .prompt {{ fill: #7ee787 }}</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
<circle cx="18" cy="17" r="6" fill="#ff5f57"/><circle cx="38" cy="17" r="6" fill="#febc2e"/><circle cx="58" cy="17" r="6" fill="#28c840"/>
"##
    );
    for (number, line) in lines.iter().enumerate() {
        let y = TITLE + (number + 1) * LINE - 5;
        let text = match line {
            Line::Typed(text) => {
                let typed = escaped(text, COLUMNS - 2);
                format!(r#"<tspan class="prompt"># </tspan><tspan class="typed">{typed}</tspan>"#)
            }
            Line::Printed(text) => escaped(text, COLUMNS),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(svg, r#"<text x="{MARGIN}" y="{y}" xml:space="preserve">{text}</text>"#);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Line {
    fn length(&self) -> usize {
        match self {
            Self::Typed(text) => text.chars().count() + 2,
            Self::Printed(text) => text.chars().count(),
        }
    }
}

fn escaped(text: &str, columns: usize) -> String {
    let mut escaped = String::new();
    for character in text.chars().take(columns) {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn drawn(session: &str) -> Result<String> {
        let directory = tempfile::tempdir().unwrap();
        let (script, out) =
            (directory.path().join("session"), directory.path().join("picture.svg"));
        fs::write(&script, session).unwrap();
        draw(&script, &out)?;
        Ok(fs::read_to_string(out).unwrap())
    }

    #[test]
    fn commands_and_output_are_drawn() {
        let picture = drawn("# a remark\nprintf '<\\033[1mbold\\033[0m & plain>'\n").unwrap();
        assert!(picture.contains("&lt;bold &amp; plain&gt;</text>"), "{picture}");
        assert!(picture.contains(r#"<tspan class="typed">printf"#), "{picture}");
        assert!(!picture.contains("a remark"), "{picture}");
    }

    #[test]
    fn picture_of_top_is_that_of_its_screen() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let screen = root.join("crates/podwright/tests/snapshots/top-wide.txt");
        let screen = fs::read_to_string(screen).unwrap();
        let picture = fs::read_to_string(root.join("docs/images/top.svg")).unwrap();
        let drawn = svg(&screen_lines(&screen));
        assert_eq!(
            picture, drawn,
            "cargo xtask picture draws it, see `cargo xtask picture --help`"
        );
    }

    #[test]
    fn hidden_commands_are_run_and_not_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("made");
        let picture = drawn(&format!("@touch {}\necho done\n", file.display())).unwrap();
        assert!(file.exists());
        assert!(!picture.contains("touch"), "{picture}");
    }

    #[test]
    fn command_that_fails_draws_nothing() {
        let error = drawn("echo no; false\n").unwrap_err();
        assert!(error.to_string().contains("no\n"), "{error}");
    }
}
