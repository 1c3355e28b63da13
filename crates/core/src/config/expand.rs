//! Expansion of `$(NAME)` in commands, arguments, variables and sub paths.
//!
//! One pass: expanded values are not expanded again. `$$` is a dollar sign, so `$$(NAME)` becomes
//! `$(NAME)`; a reference to an undefined name stays as it is.
//!
//! Templates are text; values may be any bytes, since a Secret may hold any.

pub fn expand<'v>(template: &str, mut value: impl FnMut(&str) -> Option<&'v [u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        out.extend_from_slice(before.as_bytes());
        rest = if let Some(after) = after.strip_prefix('$') {
            out.push(b'$');
            after
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|r| r.split_once(')'))
        {
            match value(name) {
                Some(value) => out.extend_from_slice(value),
                None => out.extend_from_slice(format!("$({name})").as_bytes()),
            }
            after
        } else {
            out.push(b'$'); // not the start of a reference
            after
        };
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_with_doubled_dollars_expands_to_the_original(text in ".*") {
            let doubled = text.replace('$', "$$");
            prop_assert_eq!(expand(&doubled, |_| None), text.as_bytes());
        }

        #[test]
        fn text_without_defined_names_loses_only_doubled_dollars(text in "[$()A-C ]*") {
            let expanded = String::from_utf8(expand(&text, |_| None)).unwrap();
            prop_assert!(expanded.len() <= text.len());
            if !text.contains("$$") {
                prop_assert_eq!(expanded, text);
            }
        }
    }

    #[test]
    fn references_are_replaced_once_and_everything_else_stays() {
        let defined = [("A", "x"), ("EMPTY", ""), ("NESTED", "$(A) $$"), ("", "nameless")];
        let value = |name: &str| {
            defined.iter().find(|(defined, _)| *defined == name).map(|(_, value)| value.as_bytes())
        };
        for (template, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "x"),
            ("$(A) $$(A) $(NO)", "x $(A) $(NO)"),
            ("a$(A)b$(A)", "axbx"),
            ("$$$(A)", "$x"),
            ("$$$$(A)", "$$(A)"),
            ("[$(EMPTY)]", "[]"),
            ("$(NESTED)", "$(A) $$"),
            ("$()", "nameless"),
            ("$A ${A} $ $", "$A ${A} $ $"),
            ("$(A", "$(A"),
            ("$(A $(A) $(A", "$(A $(A) $(A"),
            ("$(unclosed $$", "$(unclosed $"),
            ("€$(A)€", "€x€"),
        ] {
            assert_eq!(String::from_utf8(expand(template, value)).unwrap(), want, "{template}");
        }
    }

    #[test]
    fn value_that_is_not_utf8_is_kept_byte_for_byte() {
        assert_eq!(expand("<$(A)>", |_| Some(&[0xff, 0x00])), [b'<', 0xff, 0x00, b'>']);
    }
}
