//! Rust source with only its code left: what it says in comments and strings is no code.

/// The source with comments, strings and characters blanked out; every line keeps its number.
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
            // A blank in place of it, so that what was apart stays apart.
            code.push(' ');
            code.extend(taken.chars().filter(|c| *c == '\n'));
            in_word = false;
        }
        rest = left;
    }
    code
}

/// How many bytes at the start are no code.
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

/// They nest.
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
    fn every_line_keeps_its_number() {
        let source = "a\n\"x\ny\"\n// c\nr#\"\n\n\"#\n/*\n*/ last";
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        assert!(code.lines().last().unwrap().contains("last"));
    }
}
