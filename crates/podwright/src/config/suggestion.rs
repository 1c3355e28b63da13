//! "Did you mean": the known name nearest to one that is not known.

/// The nearest of `known`, if any is near enough to be what was meant.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let folded = word.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&folded, &name.to_ascii_lowercase()), name))
        .min()
        .filter(|(distance, name)| *distance <= tolerance(word, name))
        .map(|(_, name)| name)
}

/// A third of the word may be wrong; more, and the suggestion would only puzzle.
fn tolerance(word: &str, name: &str) -> usize {
    word.len().max(name.len()).div_ceil(3)
}

/// ` (did you mean "x"?)`, or nothing.
pub fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    nearest(word, known).map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_word_and_nonsense_finds_none() {
        let known = ["maxPods", "podsPerCore", "maxOpenFiles"];
        for (word, want) in [
            ("maxPod", Some("maxPods")),
            ("MAXPODS", Some("maxPods")),
            ("maxpdos", Some("maxPods")),
            ("podPerCore", Some("podsPerCore")),
            ("entirelyElse", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word:?}");
        }
    }
}
