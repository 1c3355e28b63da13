//! `$(NAME)` in commands, arguments, variables and sub paths.
//!
//! One pass: what a variable brings in is not looked at again. `$$` is a dollar sign, so
//! `$$(NAME)` comes out as `$(NAME)`; so does the reference to a name that nobody knows.
//!
//! Templates are text; values need not be, since a Secret may hold any bytes.

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
            out.push(b'$'); // it begins nothing
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
        fn text_with_its_dollars_doubled_comes_back_as_it_was(text in ".*") {
            let doubled = text.replace('$', "$$");
            prop_assert_eq!(expand(&doubled, |_| None), text.as_bytes());
        }

        #[test]
        fn text_in_which_no_name_is_known_loses_only_doubled_dollars(text in "[$()A-C ]*") {
            let expanded = String::from_utf8(expand(&text, |_| None)).unwrap();
            prop_assert!(expanded.len() <= text.len());
            if !text.contains("$$") {
                prop_assert_eq!(expanded, text);
            }
        }
    }

    #[test]
    fn references_are_replaced_once_and_everything_else_stays() {
        let known = [("A", "x"), ("EMPTY", ""), ("NESTED", "$(A) $$"), ("", "nameless")];
        let value = |name: &str| {
            known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
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
    fn a_value_that_is_not_text_is_kept_byte_for_byte() {
        assert_eq!(expand("<$(A)>", |_| Some(&[0xff, 0x00])), [b'<', 0xff, 0x00, b'>']);
    }
}
