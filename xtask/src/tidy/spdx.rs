//! Evaluation of SPDX licence expressions against the allowed licences.
//!
//! `OR` lets us choose, so one allowed side is enough; `AND` binds us to both; `WITH` only adds
//! permissions, but to the pair as named. Cargo's older `MIT/Apache-2.0` means `OR`.

/// Whether the expression can be met with the licences, and licence-exception pairs, allowed.
pub(super) fn permits(
    expression: &str,
    allowed: impl Fn(&str, Option<&str>) -> bool,
) -> Result<bool, String> {
    let tokens = tokens(expression);
    let mut parser = Parser { tokens: &tokens, allowed };
    let permitted = parser.either()?;
    match parser.tokens {
        [] => Ok(permitted),
        [token, ..] => Err(format!("{token:?} is out of place in {expression:?}")),
    }
}

fn tokens(expression: &str) -> Vec<String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Parser<'a, F> {
    tokens: &'a [String],
    allowed: F,
}

impl<F: Fn(&str, Option<&str>) -> bool> Parser<'_, F> {
    /// `both OR both …`: the loosest binding.
    fn either(&mut self) -> Result<bool, String> {
        let mut permitted = self.both()?;
        while self.take("OR") {
            permitted |= self.both()?;
        }
        Ok(permitted)
    }

    /// `one AND one …`
    fn both(&mut self) -> Result<bool, String> {
        let mut permitted = self.one()?;
        while self.take("AND") {
            permitted &= self.one()?;
        }
        Ok(permitted)
    }

    /// A licence, one with an exception, or an expression in parentheses.
    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let permitted = self.either()?;
            return if self.take(")") { Ok(permitted) } else { Err("a ) is missing".into()) };
        }
        let licence = self.name()?;
        let exception = if self.take("WITH") { Some(self.name()?) } else { None };
        Ok((self.allowed)(&licence, exception.as_deref()))
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens {
            [] => Err("a licence is missing at the end".into()),
            [token, ..] if matches!(token.as_str(), "OR" | "AND" | "WITH" | "(" | ")") => {
                Err(format!("a licence is missing before {token:?}"))
            }
            [name, rest @ ..] => {
                self.tokens = rest;
                Ok(name.clone())
            }
        }
    }

    fn take(&mut self, token: &str) -> bool {
        match self.tokens {
            [first, rest @ ..] if first == token => {
                self.tokens = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_mit_and_apache(expression: &str) -> Result<bool, String> {
        permits(expression, |licence, exception| match exception {
            None => matches!(licence, "MIT" | "Apache-2.0"),
            Some(exception) => (licence, exception) == ("Apache-2.0", "LLVM-exception"),
        })
    }

    #[test]
    fn expressions_are_met_as_they_bind() {
        for (expression, want) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-2.0/LGPL-2.1", false),
            ("MIT AND Apache-2.0", true),
            ("MIT AND GPL-3.0-only", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH Other-exception", false),
            ("GPL-2.0-only WITH LLVM-exception", false),
            // AND binds tighter than OR, on either side.
            ("MIT OR Apache-2.0 AND GPL-3.0-only", true),
            ("GPL-3.0-only AND MIT OR Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0-only", false),
            ("(MIT OR GPL-3.0-only) AND (GPL-2.0-only OR Apache-2.0)", true),
            ("((MIT))", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only AND MIT", true),
            // Names are matched whole.
            ("MIT-0", false),
            ("Apache-2.0+", false),
        ] {
            assert_eq!(with_mit_and_apache(expression), Ok(want), "{expression}");
        }
    }

    #[test]
    fn invalid_expression_is_an_error() {
        for expression in
            ["", "OR", "MIT OR", "AND MIT", "MIT Apache-2.0", "(MIT", "MIT)", "()", "MIT WITH"]
        {
            assert!(with_mit_and_apache(expression).is_err(), "{expression}");
        }
    }
}
