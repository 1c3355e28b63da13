//! Suggestions ("did you mean"): the known name nearest to an unknown one.

/// The nearest of `known`, if any is similar enough.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let folded = word.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&folded, &name.to_ascii_lowercase()), name))
        .min()
        .filter(|(distance, name)| *distance <= tolerance(word, name))
        .map(|(_, name)| name)
}

/// Up to a third of the characters may differ; with more the suggestion would be misleading.
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
    fn only_similar_words_are_suggested() {
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
