//! Text of others for a terminal: errors of hooks and registries, names in files.
//!
//! A terminal acts on control characters: they move the cursor, replace what was printed before,
//! set the window's title, and in some terminals enter commands. A line end forges a line of ours,
//! and a change of the writing direction shows text in another order than it is in.

use std::borrow::Cow;

/// The text with control characters written as escapes, such as `\u{1b}`. Text without them is
/// unchanged.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts_on_terminal) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match acts_on_terminal(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

fn acts_on_terminal(c: char) -> bool {
    let line_or_direction =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || line_or_direction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_unchanged() {
        for (text, want) in [
            ("pull: no such image \"a\\b\" – 404", "pull: no such image \"a\\b\" – 404"),
            ("\u{1b}[2J\u{1b}[Hall is well", "\\u{1b}[2J\\u{1b}[Hall is well"),
            ("one\n  fix        rm -rf /\r", "one\\n  fix        rm -rf /\\r"),
            ("bell\u{7}, delete\u{7f}, CSI\u{9b}31m", "bell\\u{7}, delete\\u{7f}, CSI\\u{9b}31m"),
            ("\u{202e}txt.exe\u{2066}", "\\u{202e}txt.exe\\u{2066}"),
        ] {
            assert_eq!(printable(text), want);
        }
    }
}
