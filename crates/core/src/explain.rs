//! Explanations for users: why a pod does not run well, in numbers, and the fix.
//!
//! A plan says what a pod waits for. What helps a user is often outside of the plan: which pods
//! hold the memory that is missing, what a probe was answered, how a container ended, that an image
//! is on the node already. Here it is decided what to say about that; the debug socket and the
//! commands collect the facts and print the result.

pub mod exit;
pub mod image;
pub mod node;
pub mod pending;
pub mod readiness;
pub mod stuck;
pub mod unwell;

/// At most `limit` characters of a text of others, in one line.
pub fn excerpt(text: &str, limit: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// Bytes as people read them: exact if that is short, else with one decimal, as `23.5Gi`.
pub fn readable_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let Some((unit, shift)) = UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        tenth => format!("{}.{tenth}{unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::{excerpt, readable_bytes};

    #[test]
    fn bytes_are_readable() {
        for (bytes, want) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 20, "1Mi"),
            (24_684_100 << 10, "23.5Gi"),
            (1536 << 20, "1.5Gi"),
            (u64::MAX, "16777215.9Ti"),
        ] {
            assert_eq!(readable_bytes(bytes), want);
        }
    }

    #[test]
    fn excerpt_is_one_line_and_cut_between_characters() {
        assert_eq!(excerpt("  a\n\tb  ", 10), "a b");
        assert_eq!(excerpt("äöüß", 3), "äöü…");
        assert_eq!(excerpt("äöü", 3), "äöü");
        assert_eq!(excerpt("", 3), "");
    }
}
