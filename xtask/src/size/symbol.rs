//! The crate that a symbol belongs to, from its demangled name.

/// What is not from Rust.
const OTHER: &str = "C and assembly";

/// The crate of a function or constant. That of a method is the crate of its type; where that is a
/// primitive, of the trait.
pub(super) fn crate_of(symbol: &str) -> String {
    // Without the hash, and without `.llvm.123`.
    let name = format!("{:#}", rustc_demangle::demangle(symbol));
    first_path(&name).map_or_else(|| OTHER.to_owned(), str::to_owned)
}

/// The first crate in a path such as `<&a::B as c::D<e::F>>::g`.
fn first_path(name: &str) -> Option<&str> {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let mut rest = name;
    while let Some(start) = rest.find(is_part) {
        let part = rest.get(start..)?;
        let end = part.find(|character| !is_part(character)).unwrap_or(part.len());
        let (word, after) = part.split_at(end);
        // The disambiguator of the newer mangling.
        let path = match after.strip_prefix('[') {
            Some(inside) => inside.split_once(']').map_or(after, |(_, path)| path),
            None => after,
        };
        if path.starts_with("::") {
            return Some(word);
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_count_for_the_crate_of_their_name() {
        for (name, want) in [
            ("serde_json::de::from_str", Some("serde_json")),
            ("<hyper::body::Incoming as http_body::Body>::poll_frame", Some("hyper")),
            ("<&mut tokio::net::TcpStream as core::fmt::Debug>::fmt", Some("tokio")),
            ("<[u8] as alloc::borrow::ToOwned>::to_owned", Some("alloc")),
            ("<u32 as core::fmt::Display>::fmt", Some("core")),
            ("core::ptr::drop_in_place::<kube::Client>", Some("core")),
            ("kube[1a2b]::client::build", Some("kube")),
            ("memcpy", None),
            ("", None),
        ] {
            assert_eq!(first_path(name), want, "{name}");
        }
        assert_eq!(crate_of("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core");
        assert_eq!(crate_of("memcpy"), OTHER);
    }
}
