//! Mutated copies of valid input, for parsers of external data.
//!
//! Random bytes fail the first check of any parser. These begin as valid input and are cut,
//! repeated, flipped and mixed with values that parsers handle badly, so that they get far. They
//! are a proptest strategy: a failing input is minimized, and kept to be tried first the next time.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

/// Factor for the number of cases with `PODWRIGHT_LONG`.
const LONG: u32 = 200;

/// Number of mutated copies a target reads: few by default, and many more with `PODWRIGHT_LONG`.
pub fn config() -> ProptestConfig {
    config_of(1_000)
}

/// The same for a target whose cases take more time, or less.
pub fn config_of(cases: u32) -> ProptestConfig {
    let times = if std::env::var_os("PODWRIGHT_LONG").is_some() { LONG } else { 1 };
    // Failing cases are kept beside the source of the test.
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig {
        cases: cases.saturating_mul(times),
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

/// Values that parsers of text, paths, numbers and messages handle badly.
const SALT: [&[u8]; 28] = [
    b"\0",
    b"\xff",
    b"\xc3\x28",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\t",
    b"\n---\n",
    b": ",
    b"- ",
    b"{",
    b"[",
    b"\"",
    b"'",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!binary ",
    b"null",
    b"~",
    b"-1",
    b"1e309",
    b"99999999999999999999",
    b"0x7fffffffffffffff",
    b"../",
    b"%2e%2e%2f",
    b"%00",
    b"\x80\x80\x80\x80\x80",
    b"9999-12-31T23:59:59.999999999Z",
];

#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Salt(Index, Index),
    Insert(Index, Vec<u8>),
    Cut(Index, usize),
    Repeat(Index, usize, usize),
    End(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    prop_oneof![
        4 => (place(), 0..8u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        6 => (place(), place()).prop_map(|(at, what)| Edit::Salt(at, what)),
        2 => (place(), prop::collection::vec(any::<u8>(), 1..6)).prop_map(|(at, b)| Edit::Insert(at, b)),
        3 => (place(), 1..40usize).prop_map(|(at, length)| Edit::Cut(at, length)),
        2 => (place(), 1..40usize, 2..60usize).prop_map(|(at, length, times)| Edit::Repeat(at, length, times)),
        1 => place().prop_map(Edit::End),
    ]
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
        match self {
            Self::Flip(at, bit) => {
                let at = place(at, bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Salt(at, what) => insert(bytes, place(at, bytes), what.get::<&[u8]>(&SALT)),
            Self::Insert(at, what) => insert(bytes, place(at, bytes), what),
            Self::Cut(at, length) => {
                let at = place(at, bytes);
                let end = (at + length).min(bytes.len());
                bytes.drain(at..end);
            }
            Self::Repeat(at, length, times) => {
                let at = place(at, bytes);
                let end = (at + length).min(bytes.len());
                let part = bytes.get(at..end).unwrap_or_default().repeat(*times);
                insert(bytes, at, &part);
            }
            Self::End(at) => bytes.truncate(place(at, bytes)),
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    bytes.splice(at..at, what.iter().copied());
}

/// A mutated copy of one of `seeds`; sometimes an unchanged one.
pub fn mutated<S: AsRef<[u8]> + Clone + std::fmt::Debug + 'static>(
    seeds: Vec<S>,
) -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec(edit(), 0..7);
    (prop::sample::select(seeds), edits).prop_map(|(seed, edits)| {
        let mut bytes = seed.as_ref().to_vec();
        for edit in &edits {
            edit.apply(&mut bytes);
        }
        bytes
    })
}

/// The same for parsers of text.
pub fn mutated_text<S: AsRef<[u8]> + Clone + std::fmt::Debug + 'static>(
    seeds: Vec<S>,
) -> impl Strategy<Value = String> {
    mutated(seeds).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
