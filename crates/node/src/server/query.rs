//! Query string of a request.
//!
//! Clients are Go programs, so Go's rules apply: a pair that cannot be decoded is skipped, `+` is
//! a space, and of a repeated name the first value counts unless all are requested.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode(name, Plus::Space)?, decode(value, Plus::Space)?))
        };
        Self(text.split('&').filter(|part| !part.is_empty()).filter_map(pair).collect())
    }

    pub(super) fn of(uri: &http::Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default())
    }

    /// The first value of a name.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Boolean as in stream options: only `1` is true.
    pub(super) fn is_one(&self, name: &str) -> bool {
        self.first(name) == Some("1")
    }

    /// Boolean as in API options: everything but `false` and `0` is true.
    pub(super) fn is_true(&self, name: &str) -> bool {
        self.first(name).is_some_and(|value| !matches!(&*value.to_lowercase(), "false" | "0"))
    }
}

/// Meaning of `+`: a space in a query, itself in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plus {
    Space,
    Itself,
}

/// Decodes percent-encoding; `None` if it is malformed or not UTF-8.
pub(super) fn decode(text: &str, plus: Plus) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            b'+' if plus == Plus::Space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn query_is_parsed_as_in_go() {
        let query = Query::parse("command=ls&command=-l%20a+b&tty=1&input=true&x&bad=%zz&=&%");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["ls", "-l a b"]);
        assert!(query.is_one("tty") && !query.is_one("input") && !query.is_one("output"));
        assert_eq!(query.first("x"), Some(""));
        assert_eq!(query.first("bad"), None);
    }

    #[test]
    fn option_is_true_unless_false_or_zero() {
        for (text, want) in [
            ("", false),
            ("follow", true),
            ("follow=true", true),
            ("follow=yes", true),
            ("follow=0", false),
            ("follow=False", false),
        ] {
            assert_eq!(Query::parse(text).is_true("follow"), want, "{text:?}");
        }
    }

    #[test]
    fn malformed_encoding_is_rejected() {
        for (text, want) in [
            ("a%2fb", Some("a/b")),
            ("a+b", Some("a+b")),
            ("%", None),
            ("%4", None),
            ("%g0", None),
            ("%ff", None),
            ("%00", Some("\0")),
        ] {
            assert_eq!(decode(text, Plus::Itself).as_deref(), want, "{text:?}");
        }
    }
}
