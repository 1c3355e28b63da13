//! Rust source reduced to code or to string literals, for checks that must not be misled by
//! comments and strings.

/// The source with comments, strings and characters blanked out; line numbers are kept.
pub(super) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_word = false;
    while let Some(first) = rest.chars().next() {
        let skipped = skipped(rest, in_word);
        let (taken, left) = rest.split_at(skipped.max(first.len_utf8()));
        if skipped == 0 {
            code.push(first);
            in_word = first.is_alphanumeric() || first == '_';
        } else {
            // Replaced by a blank, so that separate tokens stay separate.
            code.push(' ');
            code.extend(taken.chars().filter(|c| *c == '\n'));
            in_word = false;
        }
        rest = left;
    }
    code
}

/// A part of a source that is no comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// An identifier, a keyword or a number.
    Word(&'a str),
    /// A string literal with its quotes.
    Text(&'a str),
    Mark(char),
}

/// The tokens of a source, each with its line, counted from 1. Characters and blanks are left out.
pub(super) fn tokens(source: &str) -> Vec<(usize, Token<'_>)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let skipped = skipped(rest, false);
        let length = match skipped {
            0 if is_part(first) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            0 => first.len_utf8(),
            literal => literal,
        };
        let (taken, left) = rest.split_at(length);
        if skipped == 0 && is_part(first) {
            tokens.push((line, Token::Word(taken)));
        } else if skipped == 0 && !first.is_whitespace() {
            tokens.push((line, Token::Mark(first)));
        } else if is_string(taken) {
            tokens.push((line, Token::Text(taken)));
        }
        line += taken.matches('\n').count();
        rest = left;
    }
    tokens
}

/// Whether a comment or literal is a string: `"…"`, `r#"…"#`, `b"…"`.
fn is_string(taken: &str) -> bool {
    taken.trim_start_matches(['b', 'c', 'r', '#']).starts_with('"')
}

/// Length in bytes of the comment or literal at the start; 0 if the source starts with code.
fn skipped(rest: &str, in_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    // `r"…"`, `br#"…"#`, `c"…"`; an identifier that merely ends in r does not count.
    if !in_word {
        return prefixed_string(rest);
    }
    0
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(here) = rest.get(at..).filter(|here| !here.is_empty()) {
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// From one quote to the next that is not escaped.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// `'a'` and `'\n'` are characters; `'a` alone is a lifetime, and code.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => quoted(rest, '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

fn prefixed_string(rest: &str) -> usize {
    let prefix = rest.find(|c| !matches!(c, 'b' | 'c' | 'r')).unwrap_or(0);
    let (letters, after) = rest.split_at(prefix);
    match letters {
        "b" | "c" if after.starts_with('"') => prefix + quoted(after, '"'),
        "b" if after.starts_with('\'') => prefix + character(after),
        "r" | "br" | "cr" => raw(after).map_or(0, |length| prefix + length),
        _ => 0,
    }
}

/// `#"…"#`, with as many marks after as before, and no escapes.
fn raw(after: &str) -> Option<usize> {
    let marks = after.find(|c| c != '#')?;
    let content = after.get(marks..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    let length = content.find(&end).map_or(content.len(), |at| at + end.len());
    Some(marks + 1 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (source, code) in [
            ("let a = 1; // unsafe\nb", "let a = 1;  \nb"),
            ("a /* x /* unsafe */ y */ b", "a   b"),
            ("/* one\ntwo */ c", " \n c"),
            (r#"print("unsafe \" unsafe") end"#, "print( ) end"),
            ("r#\"a \" unsafe\"# z", "  z"),
            ("br\"x\\\" z", "  z"),
            ("b\"x\" b'\\'' c\"y\" z", "      z"),
            ("r#match for_r", "r#match for_r"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("x == '\"' || y == '\\'' || z == 'é'", "x ==   || y ==   || z ==  "),
            ("\"never closed", " "),
            ("/* never closed", " "),
            ("", ""),
        ] {
            assert_eq!(code_only(source), code, "{source}");
        }
    }

    #[test]
    fn tokens_are_words_marks_and_strings() {
        use Token::{Mark, Text, Word};

        let source = "f!(a, \"x\ny\"); // \"c\"\n'\"' r#\"z\"# /* d */ &'a";
        let want = [
            (1, Word("f")),
            (1, Mark('!')),
            (1, Mark('(')),
            (1, Word("a")),
            (1, Mark(',')),
            (1, Text("\"x\ny\"")),
            (2, Mark(')')),
            (2, Mark(';')),
            (3, Text("r#\"z\"#")),
            (3, Mark('&')),
            (3, Mark('\'')),
            (3, Word("a")),
        ];
        assert_eq!(tokens(source), want);
    }

    #[test]
    fn every_line_keeps_its_number() {
        let source = "a\n\"x\ny\"\n// c\nr#\"\n\n\"#\n/*\n*/ last";
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        assert!(code.lines().last().unwrap().contains("last"));
    }
}
