//! Table columns of each resource, from `columns.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::registry::Resource;

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) format: &'static str,
    pub(super) description: String,
    /// Shown only with `-o wide`.
    pub(super) wide: bool,
}

static COLUMNS: LazyLock<HashMap<&'static str, Vec<Column>>> =
    LazyLock::new(|| parse(include_str!("columns.txt")));

pub(super) fn of(resource: &Resource) -> &'static [Column] {
    // What is measured has no storage.
    let name = if resource.is_stored() { resource.storage } else { resource.group };
    COLUMNS.get(name).map_or(&[], Vec::as_slice)
}

/// The file is compiled in; the test below finds invalid lines.
fn parse(text: &'static str) -> HashMap<&'static str, Vec<Column>> {
    let mut columns: HashMap<&str, Vec<Column>> = HashMap::new();
    let mut resource = "";
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            Some(line) => columns.entry(resource).or_default().extend(column(line)),
            None => resource = line,
        }
    }
    columns
}

fn column(line: &'static str) -> Option<Column> {
    let mut parts = line.splitn(4, " |");
    let name = parts.next()?;
    let (kind, format) = {
        let kind = parts.next()?.trim();
        kind.split_once(':').unwrap_or((kind, ""))
    };
    let wide = parts.next()?.trim() == "wide";
    let description = parts.next()?.trim().replace("\\n", "\n");
    Some(Column { name, kind, format, description, wide })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{RESOURCES, Verb};

    #[test]
    fn every_line_is_valid_and_every_resource_has_columns() {
        let lines = include_str!("columns.txt").lines().filter(|line| line.starts_with("  "));
        assert_eq!(COLUMNS.values().map(Vec::len).sum::<usize>(), lines.count());
        for resource in RESOURCES.iter().filter(|resource| resource.allows(Verb::List)) {
            assert!(!of(resource).is_empty(), "{}", resource.plural);
        }
    }
}
