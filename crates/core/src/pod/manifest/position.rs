//! Line of a field in a manifest.
//!
//! The position is for the user only, so this reads the block style that people write by its
//! indentation. In other styles it finds the closest field around, or nothing.

/// Items that are searched for a field that was named without an index.
const SEARCHED: usize = 100;

/// A line without its indentation, comments and blank lines left out.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: u64,
    indent: usize,
    text: &'a str,
}

/// The line, from 1, of a field such as `spec.containers[0].image`, or of the closest field around
/// it that is in the text. Without an index it is that of the first item that has the field. Only
/// the first document is searched.
pub(super) fn line_of(text: &str, field: &str) -> Option<u64> {
    let mut block: Vec<Line<'_>> = Vec::new();
    for (number, line) in (1_u64..).zip(text.lines()) {
        let content = line.trim_start_matches(' ');
        if content.starts_with("---") && !block.is_empty() {
            break;
        }
        let skipped = ["#", "---", "%"].iter().any(|start| content.starts_with(start));
        if !skipped && !content.trim().is_empty() {
            let indent = line.len() - content.len();
            block.push(Line { number, indent, text: content.trim_end() });
        }
    }
    let mut found = None;
    for segment in segments(field) {
        let next = match segment {
            Segment::Key(key) => find_key(&block, key).or_else(|| find_in_items(&block, key)),
            Segment::Index(index) => find_item(&block, index),
        };
        let Some((number, inner)) = next else { return found };
        found = Some(number);
        block = inner;
    }
    found
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Key(&'a str),
    Index(usize),
}

fn segments(field: &str) -> impl Iterator<Item = Segment<'_>> {
    field.split('.').flat_map(|part| {
        let (key, rest) = part.split_once('[').unwrap_or((part, ""));
        let indexes = rest.split('[').map(|index| index.trim_end_matches(']'));
        let indexes = indexes.filter_map(|index| index.parse().ok().map(Segment::Index));
        let key = Some(Segment::Key(key)).filter(|_| !key.is_empty());
        key.into_iter().chain(indexes)
    })
}

/// The line of something, and the lines of its value.
type Found<'a> = (u64, Vec<Line<'a>>);

/// A key of the outermost mapping.
fn find_key<'a>(block: &[Line<'a>], key: &str) -> Option<Found<'a>> {
    let indent = block.first()?.indent;
    let named = |line: &Line<'_>| {
        let bare = line.text.trim_start_matches(['"', '\'']);
        let rest = bare.strip_prefix(key).map(|rest| rest.trim_start_matches(['"', '\'']));
        line.indent == indent && rest.is_some_and(|rest| rest.starts_with(':'))
    };
    let at = block.iter().position(named)?;
    let number = block.get(at)?.number;
    // A sequence may be indented as its key is.
    let is_inner = |line: &&Line<'_>| {
        line.indent > indent || line.indent == indent && line.text.starts_with('-')
    };
    Some((number, block.iter().skip(at + 1).take_while(is_inner).copied().collect()))
}

/// An item of the outermost sequence; its dash becomes indentation.
fn find_item<'a>(block: &[Line<'a>], index: usize) -> Option<Found<'a>> {
    let indent = block.first()?.indent;
    let is_item = |line: &Line<'_>| line.indent == indent && line.text.starts_with('-');
    let at = block.iter().enumerate().filter(|(_, line)| is_item(line)).nth(index)?.0;
    let first = *block.get(at)?;
    let content = first.text.strip_prefix('-')?.trim_start_matches(' ');
    let indent = first.indent + first.text.len() - content.len();
    // An item may begin on the line after its dash.
    let begin = (!content.is_empty()).then_some(Line { indent, text: content, ..first });
    let rest = block.iter().skip(at + 1).take_while(|line| !is_item(line)).copied();
    Some((first.number, begin.into_iter().chain(rest).collect()))
}

/// A key of the first item of a sequence that has it.
fn find_in_items<'a>(block: &[Line<'a>], key: &str) -> Option<Found<'a>> {
    (0..block.len().min(SEARCHED))
        .map_while(|index| find_item(block, index))
        .find_map(|(_, item)| find_key(&item, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "\
# a pod
apiVersion: v1
kind: Pod
metadata:
  name: web

spec:
  containers:
  - name: app
    image: i
    ports:
      - containerPort: 80
      - containerPort: 0
  - image: j
    \"name\": two
  volumes:
    -
      name: v
";

    #[test]
    fn line_of_a_field_is_found_by_indentation() {
        for (field, want) in [
            ("metadata.name", Some(5)),
            ("spec.containers[0].image", Some(10)),
            ("spec.containers[0].ports[1].containerPort", Some(13)),
            ("spec.containers[1].name", Some(15)),
            ("spec.containers[1]", Some(14)),
            ("spec.volumes[0].name", Some(18)),
            ("kind", Some(3)),
            ("spec.containers.ports.containerPort", Some(12)),
            ("spec.containers.image", Some(10)),
            ("status", None),
        ] {
            assert_eq!(line_of(POD, field), want, "{field}");
        }
    }

    #[test]
    fn missing_field_has_the_line_of_the_closest_one_around() {
        for (text, field, want) in [
            ("spec: {containers: []}", "spec.containers[0].image", Some(1)),
            ("spec:\n  containers:\n  - name: a\n", "spec.containers[5].image", Some(2)),
            ("{\"spec\": 1}", "spec", None),
            ("", "spec", None),
            ("a:\n- - b\n", "a[0][0]", Some(2)),
            ("---\nkind: A\n---\nspec: 1\n", "spec", None),
        ] {
            assert_eq!(line_of(text, field), want, "{text:?}");
        }
    }
}
