//! JSON syntax errors with Go's messages, as users of kubectl know them.
//!
//! Used only after parsing has failed, so it finds the first error and nothing else.

/// The first syntax error, if there is one.
pub(super) fn error(text: &[u8]) -> Option<String> {
    let mut scan = Scan { text, at: 0 };
    scan.value(0).and_then(|()| scan.end()).err()
}

/// Go's maximum nesting depth.
const MAX_DEPTH: usize = 10_000;

type ScanResult = Result<(), String>;

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn error_at(&self, context: &str) -> String {
        match self.peek() {
            None => "unexpected end of JSON input".to_owned(),
            Some(byte) => format!("invalid character {} {context}", quoted(byte)),
        }
    }

    fn end(&mut self) -> ScanResult {
        self.skip_space();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error_at("after top-level value")),
        }
    }

    /// Uses an explicit stack: a text may nest deeper than the thread's stack.
    fn value(&mut self, mut depth: usize) -> ScanResult {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                    } else {
                        self.key()?;
                        open.push(b'{');
                        depth += 1;
                        if depth > MAX_DEPTH {
                            return Err("exceeded max depth".to_owned());
                        }
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                    } else {
                        open.push(b'[');
                        depth += 1;
                        if depth > MAX_DEPTH {
                            return Err("exceeded max depth".to_owned());
                        }
                        continue;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.error_at("looking for beginning of value")),
            }
            if !self.after_value(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Closes what ends here; returns whether another value follows.
    fn after_value(&mut self, open: &mut Vec<u8>) -> Result<bool, String> {
        loop {
            let Some(within) = open.last().copied() else { return Ok(false) };
            self.skip_space();
            match (within, self.peek()) {
                (b'{', Some(b',')) => {
                    self.at += 1;
                    self.skip_space();
                    self.key()?;
                    return Ok(true);
                }
                (b'[', Some(b',')) => {
                    self.at += 1;
                    return Ok(true);
                }
                (b'{', Some(b'}')) | (b'[', Some(b']')) => {
                    self.at += 1;
                    open.pop();
                }
                (b'{', _) => return Err(self.error_at("after object key:value pair")),
                _ => return Err(self.error_at("after array element")),
            }
        }
    }

    fn key(&mut self) -> ScanResult {
        if self.peek() != Some(b'"') {
            return Err(self.error_at("looking for beginning of object key string"));
        }
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.error_at("after object key"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> ScanResult {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => {
                            self.at += 1;
                        }
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                    return Err(
                                        self.error_at("in \\u hexadecimal character escape")
                                    );
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(self.error_at("in string escape code")),
                    }
                }
                Some(byte) if byte >= 0x20 => self.at += 1,
                _ => return Err(self.error_at("in string literal")),
            }
        }
    }

    fn literal(&mut self, word: &str) -> ScanResult {
        for (at, wanted) in word.bytes().enumerate() {
            if self.peek() != Some(wanted) {
                debug_assert!(at > 0);
                let wanted = char::from(wanted);
                return Err(self.error_at(&format!("in literal {word} (expecting '{wanted}')")));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> ScanResult {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.error_at("in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(self.error_at("after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(self.error_at("in exponent of numeric literal"));
            }
            self.digits();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }
}

fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..0xa0 => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_errors_have_the_messages_of_go() {
        for (text, want) in [
            ("{nope", "invalid character 'n' looking for beginning of object key string"),
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("nope", "invalid character 'o' in literal null (expecting 'u')"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("{\"a\":\"\n\"}", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
        ] {
            assert_eq!(error(text.as_bytes()).as_deref(), Some(want), "{text}");
        }
        assert_eq!(
            error(b"\xcf<").as_deref(),
            Some("invalid character '\u{cf}' looking for beginning of value")
        );
        for text in ["{}", " [1, -0.5e3, true, null, {\"a\": [\"\\u00e9\"]}] ", "\"x\""] {
            assert_eq!(error(text.as_bytes()), None, "{text}");
        }
    }
}
