//! Go durations, as used by Kubernetes.
//!
//! Configuration files, flags and `/configz` use Go's duration syntax (`1m0s`, `100ms`,
//! `1.5h`), may be negative ("off" for some settings), and are printed back in Go's normal form.
//! `std::time::Duration` has neither sign nor syntax, hence a separate type.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::{Serialize, Serializer};

const NANOSECOND: i128 = 1;
const MICROSECOND: i128 = 1_000;
const MILLISECOND: i128 = 1_000_000;
const SECOND: i128 = 1_000_000_000;
const MINUTE: i128 = 60 * SECOND;
const HOUR: i128 = 60 * MINUTE;

/// A signed duration in nanoseconds, like Go's `time.Duration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(MILLISECOND as i64))
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(SECOND as i64))
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// As a std duration; negative becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

/// Parse error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("is not a duration; write numbers with units, such as 30s, 1m30s or 100ms")]
    Malformed,
    #[error("has no unit; write for example {0}s or {0}m")]
    NoUnit(String),
    #[error("has the unknown unit {0:?}; known are ns, us, ms, s, m, h")]
    UnknownUnit(String),
    #[error("is longer than the longest duration there is, about 292 years")]
    TooLong,
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        if unsigned.is_empty() {
            return Err(DurationError::Malformed);
        }
        let mut rest = unsigned;
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (nanos, after) = leading_term(rest)?;
            total = total.checked_add(nanos).ok_or(DurationError::TooLong)?;
            rest = after;
        }
        let signed = if negative { -total } else { total };
        i64::try_from(signed).map(Self).map_err(|_| DurationError::TooLong)
    }
}

/// The first number-with-unit of `text` in nanoseconds, and what follows it.
fn leading_term(text: &str) -> Result<(i128, &str), DurationError> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => split_digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Malformed);
    }
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let scale = match unit {
        "ns" => NANOSECOND,
        // Go accepts both the micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "" => return Err(DurationError::NoUnit(whole.to_owned())),
        other => return Err(DurationError::UnknownUnit(other.to_owned())),
    };
    let whole: i128 = parse_digits(whole)?;
    let nanos = whole.checked_mul(scale).ok_or(DurationError::TooLong)?;
    Ok((nanos.saturating_add(scaled_fraction(fraction, scale)), rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn parse_digits(digits: &str) -> Result<i128, DurationError> {
    if digits.is_empty() { Ok(0) } else { digits.parse().map_err(|_| DurationError::TooLong) }
}

/// `0.<digits>` of a unit in nanoseconds, cut off below one. Digits past the eighteenth are worth
/// less than a nanosecond of any unit.
fn scaled_fraction(digits: &str, scale: i128) -> i128 {
    let (value, weight) = digits.bytes().take(18).fold((0, 1), |(value, weight), digit| {
        (value * 10 + i128::from(digit - b'0'), weight * 10)
    });
    value * scale / weight
}

impl fmt::Display for GoDuration {
    /// Go's normal form: hours, minutes and seconds, or one sub-second unit; `0s` for zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i128::from(self.0).abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            n if n < MICROSECOND => write!(f, "{n}ns"),
            n if n < MILLISECOND => write!(f, "{}\u{b5}s", Decimal(n, MICROSECOND)),
            n if n < SECOND => write!(f, "{}ms", Decimal(n, MILLISECOND)),
            n => {
                if n >= HOUR {
                    write!(f, "{}h", n / HOUR)?;
                }
                if n >= MINUTE {
                    write!(f, "{}m", n % HOUR / MINUTE)?;
                }
                write!(f, "{}s", Decimal(n % MINUTE, SECOND))
            }
        }
    }
}

/// `nanos / unit` with as many decimals as it needs.
struct Decimal(i128, i128);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(nanos, unit) = *self;
        write!(f, "{}", nanos / unit)?;
        let rest = nanos % unit;
        if rest == 0 {
            return Ok(());
        }
        let places = unit.ilog10() as usize;
        write!(f, ".{}", format!("{rest:0places$}").trim_end_matches('0'))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"30s\" or \"1m30s\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse().map_err(E::custom)
            }

            /// Only `0` needs no unit.
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<GoDuration, E> {
                match number {
                    0 => Ok(GoDuration::ZERO),
                    _ => Err(E::custom(DurationError::NoUnit(number.to_string()))),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<GoDuration, E> {
                match number {
                    0 => Ok(GoDuration::ZERO),
                    _ => Err(E::custom(DurationError::NoUnit(number.to_string()))),
                }
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// For `logging.flushFrequency`, which may also be a number of nanoseconds upstream.
pub(crate) fn duration_or_nanos<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<GoDuration, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Number(nanos) => {
            nanos.as_i64().map(GoDuration::from_nanos).ok_or_else(|| {
                D::Error::custom("is neither a duration nor a whole number of nanoseconds")
            })
        }
        other => serde_json::from_value(other).map_err(D::Error::custom),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read_and_printed_in_normal_form() {
        for (text, nanos, normal) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-0", 0, "0s"),
            ("1ns", 1, "1ns"),
            ("1500ns", 1_500, "1.5\u{b5}s"),
            ("3us", 3_000, "3\u{b5}s"),
            ("3\u{b5}s", 3_000, "3\u{b5}s"),
            ("3\u{3bc}s", 3_000, "3\u{b5}s"),
            ("100ms", 100_000_000, "100ms"),
            ("1s", 1_000_000_000, "1s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("5.s", 5_000_000_000, "5s"),
            ("2m", 120_000_000_000, "2m0s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("90s", 90_000_000_000, "1m30s"),
            ("4h", 14_400_000_000_000, "4h0m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("0.100000000000000000000h", 360_000_000_000, "6m0s"),
            ("-10s", -10_000_000_000, "-10s"),
            ("+10s", 10_000_000_000, "10s"),
            ("1m0.000000001s", 60_000_000_001, "1m0.000000001s"),
            ("2540400h10m10s", 9_145_440_610_000_000_000, "2540400h10m10s"),
        ] {
            let parsed: GoDuration = text.parse().unwrap();
            assert_eq!(parsed, GoDuration::from_nanos(nanos), "{text}");
            assert_eq!(parsed.to_string(), normal, "{text}");
            assert_eq!(normal.parse(), Ok(parsed), "{text} printed and read again");
        }
    }

    #[test]
    fn invalid_durations_are_refused_with_a_hint() {
        for (text, want) in [
            ("", DurationError::Malformed),
            ("-", DurationError::Malformed),
            ("s", DurationError::Malformed),
            (".s", DurationError::Malformed),
            ("ten seconds", DurationError::Malformed),
            ("3", DurationError::NoUnit("3".to_owned())),
            ("1m30", DurationError::NoUnit("30".to_owned())),
            ("1d", DurationError::UnknownUnit("d".to_owned())),
            ("1 s", DurationError::UnknownUnit(" s".to_owned())),
            ("9223372037s", DurationError::TooLong),
            ("99999999999999999999999999999999999999999h", DurationError::TooLong),
        ] {
            assert_eq!(text.parse::<GoDuration>(), Err(want), "{text}");
        }
    }

    #[test]
    fn duration_in_a_document_is_text_or_zero() {
        assert_eq!(
            serde_json::from_str::<GoDuration>("\"20s\"").unwrap(),
            GoDuration::from_secs(20)
        );
        assert_eq!(serde_json::from_str::<GoDuration>("0").unwrap(), GoDuration::ZERO);
        let refused = serde_json::from_str::<GoDuration>("20").unwrap_err().to_string();
        assert!(refused.contains("has no unit"), "{refused}");
        assert!(serde_json::from_str::<GoDuration>("true").is_err());
    }

    #[test]
    fn negative_duration_becomes_zero() {
        assert_eq!(GoDuration::from_secs(-1).to_std(), Duration::ZERO);
        assert_eq!(GoDuration::from_millis(1500).to_std(), Duration::from_millis(1500));
    }
}
