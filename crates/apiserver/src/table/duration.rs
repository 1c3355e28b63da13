//! Human-readable age, in two or three figures.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

pub(super) fn since(then: &str, now: Timestamp) -> String {
    match then.parse::<Timestamp>() {
        Ok(then) => human(now.duration_since(then).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}

pub(super) fn between(then: Timestamp, now: Timestamp) -> String {
    human(now.duration_since(then).as_secs())
}

/// A second of clock skew counts as zero; more is invalid.
fn human(seconds: i64) -> String {
    let two = |big: i64, big_unit: char, small: i64, small_unit: char| match small {
        0 => format!("{big}{big_unit}"),
        small => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, 'm', s % MINUTE, 's'),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, 'h', s % HOUR / MINUTE, 'm'),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, 'd', s % DAY / HOUR, 'h'),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, 'y', s % YEAR / DAY, 'd'),
        s => format!("{}y", s / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_decreases_with_age() {
        for (seconds, want) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * MINUTE, "10m"),
            (179 * MINUTE, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 90, "3h1m"),
            (8 * HOUR, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 5 * HOUR, "2d5h"),
            (8 * DAY + HOUR, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (731 * DAY, "2y1d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(human(seconds), want, "{seconds}");
        }
    }

    #[test]
    fn missing_time_is_unknown() {
        assert_eq!(since("", Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(since("1970-01-01T00:00:00Z", Timestamp::UNIX_EPOCH), "0s");
    }
}
