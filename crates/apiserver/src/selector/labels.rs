//! Label selectors: `app=web,tier in (a,b),!gone`.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use podwright_api::validation::field::quote;
use podwright_api::validation::format;

use super::SelectorError;

/// Requirements that must all hold; none select everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        Parser { tokens: tokens(text), at: 0 }.selector()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels.get(&requirement.key)))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Greater(bound) => number().is_some_and(|number| number > *bound),
            Test::Less(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// A word or an operator; the parser's `None` is the end of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Sign(&'static str),
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Sign(sign) => sign,
        }
    }
}

/// Longest first, so that `!=` is not parsed as `!`.
const SIGNS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            rest = rest.get(sign.len()..).unwrap_or_default();
        } else {
            let ends = |c: char| is_space(c) || "=!(),><".contains(c);
            let end = rest.find(ends).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            tokens.push(Token::Word(word.to_owned()));
            rest = after;
        }
        rest = rest.trim_start_matches(is_space);
    }
    tokens
}

const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    fn selector(mut self) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                None => return Ok(LabelSelector(requirements)),
                Some(Token::Word(_) | Token::Sign("!")) => {
                    let requirement = self.requirement().map_err(|why| {
                        SelectorError(format!("unable to parse requirement: {why}"))
                    })?;
                    requirements.push(requirement);
                }
                other => {
                    return Err(SelectorError(unexpected(
                        other,
                        "!, identifier, or 'end of string'",
                    )));
                }
            }
            match self.next() {
                None => return Ok(LabelSelector(requirements)),
                Some(Token::Sign(",")) => match self.peek() {
                    Some(Token::Word(_) | Token::Sign("!")) => {}
                    other => return Err(SelectorError(unexpected(other, "identifier after ','"))),
                },
                other => {
                    return Err(SelectorError(unexpected(
                        other.as_ref(),
                        "',' or 'end of string'",
                    )));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == Some(&Token::Sign("!"));
        if absent {
            self.at += 1;
        }
        let key = match self.next() {
            Some(Token::Word(key)) => key,
            other => return Err(unexpected(other.as_ref(), "identifier")),
        };
        let test = match self.peek() {
            _ if absent => Test::Absent,
            None | Some(Token::Sign(",")) => Test::Exists,
            Some(_) => self.test()?,
        };
        check(&key, &test)?;
        Ok(Requirement { key, test })
    }

    fn test(&mut self) -> Result<Test, String> {
        match self.next() {
            Some(Token::Word(word)) if word == "in" => Ok(Test::In(self.values()?)),
            Some(Token::Word(word)) if word == "notin" => Ok(Test::NotIn(self.values()?)),
            Some(Token::Sign("=" | "==")) => Ok(Test::In([self.value()?].into())),
            Some(Token::Sign("!=")) => Ok(Test::NotIn([self.value()?].into())),
            Some(Token::Sign(">")) => Ok(Test::Greater(self.number()?)),
            Some(Token::Sign("<")) => Ok(Test::Less(self.number()?)),
            other => Err(unexpected(other.as_ref(), "in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// The value after `=`; may be empty.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            None | Some(Token::Sign(",")) => Ok(String::new()),
            Some(Token::Word(_)) => {
                Ok(self.next().map(|t| t.text().to_owned()).unwrap_or_default())
            }
            other => Err(unexpected(other, "identifier")),
        }
    }

    fn number(&mut self) -> Result<i64, String> {
        let value = self.value()?;
        value.parse().map_err(|_| {
            format!(
                "values[0]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer"
            )
        })
    }

    /// `(a,b)`; nothing between commas is the empty value.
    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        match self.next() {
            Some(Token::Sign("(")) => {}
            other => {
                return Err(unexpected(other.as_ref(), "'('").replace(", expected", " expected"));
            }
        }
        let mut values = BTreeSet::new();
        let mut word_before = false;
        loop {
            match self.next() {
                Some(Token::Word(word)) if !word_before => {
                    values.insert(word);
                    word_before = true;
                }
                Some(Token::Sign(",")) => {
                    if !word_before {
                        values.insert(String::new());
                    }
                    word_before = false;
                    if self.peek() == Some(&Token::Sign(")")) {
                        values.insert(String::new());
                        word_before = true;
                    }
                }
                Some(Token::Sign(")")) => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    return Ok(values);
                }
                other => return Err(unexpected(other.as_ref(), "',', ')' or identifier")),
            }
        }
    }
}

/// Keys and values must be valid for labels.
fn check(key: &str, test: &Test) -> Result<(), String> {
    let mut errors = Vec::new();
    let mut note = |field: String, value: &str, problems: Vec<String>| {
        if !problems.is_empty() {
            let problems = problems.join("; ");
            errors.push(format!("{field}: Invalid value: {}: {problems}", quote(value)));
        }
    };
    note("key".to_owned(), key, format::qualified_name(key));
    if let Test::In(values) | Test::NotIn(values) = test {
        for (i, value) in values.iter().enumerate() {
            note(format!("values[{i}][{key}]"), value, format::label_value(value));
        }
    }
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn unexpected(found: Option<&Token>, expected: &str) -> String {
    format!("found '{}', expected: {expected}", found.map_or("", Token::text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_labels() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("n", "5"), ("empty", ""), ("x.io/in", "in")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into();
        for (selector, want) in [
            ("", true),
            (" ", true),
            ("app", true),
            ("!app", false),
            ("gone", false),
            ("!gone", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web", true),
            ("app!=web", false),
            ("gone!=web", true),
            ("empty=", true),
            ("empty=,app=web", true),
            ("app in (web)", true),
            ("app in (db, web)", true),
            ("app in (db)", false),
            ("gone in (db)", false),
            ("app notin (db)", true),
            ("gone notin (db)", true),
            ("app notin (web)", false),
            ("empty in (,a)", true),
            ("n>4", true),
            ("n>5", false),
            ("n<6,n>4", true),
            ("app>4", false),
            ("x.io/in=in", true),
            ("x.io/in in (in,notin)", true),
        ] {
            let parsed =
                LabelSelector::parse(selector).unwrap_or_else(|e| panic!("{selector}: {e}"));
            assert_eq!(parsed.matches(&labels), want, "{selector}");
        }
    }

    #[test]
    fn bad_selectors_are_refused_with_kube_apiservers_messages() {
        for (selector, message) in [
            (
                "a=-b",
                "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
            (
                "!a/b/c",
                "unable to parse requirement: key: Invalid value: \"a/b/c\": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            ),
            ("!!", "unable to parse requirement: found '!', expected: identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("a,=", "found '=', expected: identifier after ','"),
            ("=a", "found '=', expected: !, identifier, or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            (
                "a>b",
                "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ] {
            let refused = LabelSelector::parse(selector).map_err(|e| e.to_string());
            assert_eq!(refused, Err(message.to_owned()), "{selector}");
        }
    }
}
