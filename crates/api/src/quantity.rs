//! Kubernetes quantities: `500m`, `1.5Gi`, `1e3`.
//!
//! A limit that is off by one byte or one millicore is a different limit, so no floating point is
//! used. Users compare our output with the API server's, so the spelling is upstream's. A quantity
//! is a whole number of nano-units in an `i128`, which holds everything that upstream accepts up to
//! 1.7e29 units; beyond that it saturates. Anything finer than a nano-unit is rounded away from
//! zero when parsed, as upstream does, so that a non-zero request stays non-zero.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// Upper bound of binary quantities, as upstream.
const BINARY_MAX: u128 = i64::MAX as u128 * NANOS_PER_UNIT as u128;
/// Far outside the range of an `i128`; keeps exponent arithmetic from overflowing.
const EXPONENT_BOUND: i64 = 100;

/// An exact amount, with the suffix format for printing.
///
/// Two quantities are equal if their amounts are: `1000m == 1`, `1Ki == 1024`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Suffix format for printing, taken from the parsed text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `n u m "" k M G T P E`
    #[default]
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`
    BinarySi,
    /// `e3`
    DecimalExponent,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: {why}; use a number such as 250m, 1.5Gi or 1e3")]
pub struct ParseQuantityError {
    text: String,
    why: &'static str,
}

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };

    pub fn new(units: i64, format: Format) -> Self {
        Self { nanos: i128::from(units) * NANOS_PER_UNIT, format }
    }

    /// Thousandths, printed as decimal; used for CPU.
    pub fn from_milli(milli: i64) -> Self {
        Self { nanos: i128::from(milli) * NANOS_PER_MILLI, format: Format::DecimalSi }
    }

    /// Billionths, printed as decimal; used for measured CPU.
    pub fn from_nanos(nanos: u64) -> Self {
        Self { nanos: i128::from(nanos), format: Format::DecimalSi }
    }

    /// Bytes, printed with binary suffixes; used for memory.
    pub fn from_bytes(bytes: u64) -> Self {
        Self { nanos: i128::from(bytes) * NANOS_PER_UNIT, format: Format::BinarySi }
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether this is the largest or smallest amount. A sum that reached it is not exact.
    pub fn is_saturated(self) -> bool {
        matches!(self.nanos, i128::MAX | i128::MIN)
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub fn format(self) -> Format {
        self.format
    }

    /// Whole units, rounded away from zero. Saturates where upstream's would wrap.
    pub fn value(self) -> i64 {
        in_units_of(self.nanos, NANOS_PER_UNIT)
    }

    /// Thousandths, rounded away from zero. Saturates where upstream's would wrap.
    pub fn milli_value(self) -> i64 {
        in_units_of(self.nanos, NANOS_PER_MILLI)
    }

    /// Whole units as an unsigned number; negative quantities become zero.
    pub fn unsigned_value(self) -> u64 {
        u64::try_from(self.value()).unwrap_or(0)
    }
}

/// Quantity as the API server stores it: the canonical form, unless the text is already in a form
/// that it accepts as canonical, which is kept byte for byte.
///
/// That check is looser than the canonical form (`1.500`, `+5`, `1E3` and `5.` pass), and clients
/// see the result, so the embedded API server has to do the same.
pub fn as_stored(text: &str) -> Result<String, ParseQuantityError> {
    let quantity: Quantity = text.parse()?;
    let spelled = Spelling::split(text)?;
    if text == "0" || spelled.passes_as_canonical() {
        return Ok(text.to_owned());
    }
    Ok(quantity.to_string())
}

/// Parts of a quantity's text.
struct Spelling<'a> {
    negative: bool,
    /// Digits before the point, without leading zeros.
    whole: &'a str,
    /// Digits after the point.
    fraction: &'a str,
    suffix: Suffix,
}

#[derive(Clone, Copy)]
enum Suffix {
    /// A power of ten, and its format.
    Ten(i64, Format),
    /// A power of two.
    Two(u32),
}

impl<'a> Spelling<'a> {
    fn split(text: &'a str) -> Result<Self, ParseQuantityError> {
        let fail = |why| ParseQuantityError { text: text.to_owned(), why };
        let (negative, unsigned) = match text.as_bytes().first() {
            None => return Err(fail("empty text")),
            Some(b'-') => (true, text.strip_prefix('-').unwrap_or(text)),
            Some(b'+') => (false, text.strip_prefix('+').unwrap_or(text)),
            Some(_) => (false, text),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        // Upstream parses a lone sign or point as zero; here it is an error.
        if whole.is_empty() && fraction.is_empty() {
            return Err(fail("no digits"));
        }
        let suffix = Suffix::parse(suffix).ok_or_else(|| fail("unknown suffix"))?;
        Ok(Self { negative, whole: whole.trim_start_matches('0'), fraction, suffix })
    }

    fn quantity(&self) -> Quantity {
        let (mut magnitude, mut format) = match self.suffix {
            Suffix::Ten(exponent, format) => (self.decimal_nanos(exponent), format),
            Suffix::Two(exponent) => {
                (self.binary_nanos(exponent).min(BINARY_MAX), Format::BinarySi)
            }
        };
        magnitude = magnitude.min(i128::MAX as u128);
        if format == Format::BinarySi && magnitude < NANOS_PER_UNIT as u128 && magnitude > 0 {
            format = Format::DecimalSi; // half a byte has no binary form
        }
        let nanos = i128::try_from(magnitude).unwrap_or(i128::MAX);
        Quantity { nanos: if self.negative { -nanos } else { nanos }, format }
    }

    /// Moves the decimal point: exact for any number of digits.
    fn decimal_nanos(&self, exponent: i64) -> u128 {
        let digits = || self.whole.bytes().chain(self.fraction.bytes()).map(|b| b - b'0');
        let whole_len = i64::try_from(self.whole.len()).unwrap_or(i64::MAX);
        let point = usize::try_from(whole_len.saturating_add(exponent + 9)).unwrap_or(0);
        let mut nanos: u128 = 0;
        for digit in digits().take(point) {
            nanos = nanos.saturating_mul(10).saturating_add(digit.into());
        }
        let known = self.whole.len() + self.fraction.len();
        for _ in known..point {
            if nanos == 0 || nanos == u128::MAX {
                break;
            }
            nanos = nanos.saturating_mul(10);
        }
        let finer = digits().skip(point).any(|digit| digit != 0);
        nanos.saturating_add(finer.into())
    }

    /// Multiplies by a power of two: exact for any number of digits.
    fn binary_nanos(&self, exponent: u32) -> u128 {
        let unit = (NANOS_PER_UNIT as u128) << exponent; // at most 2^90
        let whole = self
            .whole
            .bytes()
            .fold(0u128, |n, b| n.saturating_mul(10).saturating_add((b - b'0').into()));
        // 0.d1d2…dn * unit, from the last digit: each step divides by ten, and a remainder at any
        // step means that the result is not whole.
        let mut part: u128 = 0;
        let mut finer = false;
        for digit in self.fraction.bytes().rev().map(|b| u128::from(b - b'0')) {
            let sum = digit * unit + part;
            finer |= !sum.is_multiple_of(10);
            part = sum / 10;
        }
        whole.saturating_mul(unit).saturating_add(part).saturating_add(finer.into())
    }

    /// Upstream's check for keeping the text unchanged.
    fn passes_as_canonical(&self) -> bool {
        let whole_len = self.whole.len().max(1); // an empty whole part counts as one zero
        let leads_with_zero = self.whole.is_empty();
        match self.suffix {
            Suffix::Ten(exponent, _) => {
                let scale = exponent - i64::try_from(self.fraction.len()).unwrap_or(i64::MAX);
                let ends_in_000 = self
                    .whole
                    .bytes()
                    .chain(self.fraction.bytes())
                    .rev()
                    .take_while(|b| *b == b'0');
                whole_len + self.fraction.len() <= 18
                    && scale >= -9
                    && scale % 3 == 0
                    && !leads_with_zero
                    && ends_in_000.count() < 3
            }
            Suffix::Two(exponent) => {
                let room = 14 - i64::from(exponent) * 3 / 10;
                self.fraction.is_empty()
                    && i64::try_from(whole_len).is_ok_and(|len| len <= room)
                    && self.whole.parse::<u64>().is_ok_and(|number| number % 8 != 0)
            }
        }
    }
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        let ten = |exponent| Some(Self::Ten(exponent, Format::DecimalSi));
        match text {
            "n" => ten(-9),
            "u" => ten(-6),
            "m" => ten(-3),
            "" => ten(0),
            "k" => ten(3),
            "M" => ten(6),
            "G" => ten(9),
            "T" => ten(12),
            "P" => ten(15),
            "E" => ten(18),
            "Ki" => Some(Self::Two(10)),
            "Mi" => Some(Self::Two(20)),
            "Gi" => Some(Self::Two(30)),
            "Ti" => Some(Self::Two(40)),
            "Pi" => Some(Self::Two(50)),
            "Ei" => Some(Self::Two(60)),
            _ => {
                let exponent: i64 = text.strip_prefix(['e', 'E'])?.parse().ok()?;
                let exponent = exponent.clamp(-EXPONENT_BOUND, EXPONENT_BOUND);
                Some(Self::Ten(exponent, Format::DecimalExponent))
            }
        }
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(end)
}

fn in_units_of(nanos: i128, unit: i128) -> i64 {
    let up = i128::from(nanos % unit != 0) * nanos.signum();
    let whole = nanos / unit + up;
    i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Spelling::split(text).map(|spelling| spelling.quantity())
    }
}

impl TryFrom<String> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Surrounding spaces are accepted, as by upstream's decoder.
impl TryFrom<&ApiQuantity> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(api: &ApiQuantity) -> Result<Self, Self::Error> {
        api.0.trim().parse()
    }
}

impl From<Quantity> for ApiQuantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.to_string())
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.to_string()
    }
}

/// Canonical form: no fraction, no lost precision, the largest suffix that allows both.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANOS_PER_UNIT == 0;
        let units = self.nanos / NANOS_PER_UNIT;
        if self.format == Format::BinarySi && whole && units.unsigned_abs() >= 1024 {
            return write_binary(f, units);
        }
        write_decimal(f, self.nanos, self.format == Format::DecimalExponent)
    }
}

fn write_binary(f: &mut fmt::Formatter<'_>, mut units: i128) -> fmt::Result {
    const SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut suffix = "";
    for larger in SUFFIXES {
        if units % 1024 != 0 {
            break;
        }
        units /= 1024;
        suffix = larger;
    }
    write!(f, "{units}{suffix}")
}

fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: i128, as_exponent: bool) -> fmt::Result {
    const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let mut number = nanos;
    let mut exponent = -9;
    if as_exponent {
        while number % 1000 == 0 {
            number /= 1000;
            exponent += 3;
        }
        return match exponent {
            0 => write!(f, "{number}"),
            _ => write!(f, "{number}e{exponent}"),
        };
    }
    let mut suffix = "";
    for (step, this) in SUFFIXES.into_iter().enumerate() {
        suffix = this;
        // Upstream has no suffix beyond `E` and prints a wrong number; we keep the `E`.
        if number % 1000 != 0 || step + 1 == SUFFIXES.len() {
            break;
        }
        number /= 1000;
    }
    write!(f, "{number}{suffix}")
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Zero in a format that yields to the other operand's.
impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

/// The result has the format of the left operand, unless that is zero, as upstream.
impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
        quantities.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
#[path = "quantity/tests.rs"]
mod tests;
