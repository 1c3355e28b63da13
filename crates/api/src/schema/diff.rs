//! Unified diff of two texts with three lines of context.
//!
//! No crate is used, because the message of a refused update contains this diff and clients compare
//! it. The API server finds the longest block of common lines and recurses left and right of it; in
//! texts of 200 lines and more, very frequent lines do not start a block. A minimal diff would
//! differ.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;

const CONTEXT: usize = 3;
/// Below this, every line may start a block.
const COMMON_LINES_FROM: usize = 200;
/// The search is quadratic for adversarial input, and a longer diff has no use.
const MAX_LINES: usize = 10_000;

/// Diff from `a` to `b`; empty if they are equal or too long to compare.
pub fn unified(a: &str, b: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split('\n').collect(), b.split('\n').collect());
    if a.len() > MAX_LINES || b.len() > MAX_LINES {
        return String::new();
    }
    let mut out = String::new();
    for group in groups(changes(&a, &b)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let _ = writeln!(
            out,
            "@@ -{} +{} @@",
            range(first.a.start..last.a.end),
            range(first.b.start..last.b.end)
        );
        for run in &group {
            let (removed, added) = if run.same { (" ", "") } else { ("-", "+") };
            for line in a.get(run.a.clone()).unwrap_or_default() {
                let _ = writeln!(out, "{removed}{line}");
            }
            if !run.same {
                for line in b.get(run.b.clone()).unwrap_or_default() {
                    let _ = writeln!(out, "{added}{line}");
                }
            }
        }
    }
    out
}

fn range(lines: Range<usize>) -> String {
    match lines.len() {
        1 => format!("{}", lines.start + 1),
        0 => format!("{},0", lines.start),
        length => format!("{},{length}", lines.start + 1),
    }
}

/// A run of lines that are common, or that replace others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    same: bool,
    a: Range<usize>,
    b: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    a: usize,
    b: usize,
    len: usize,
}

fn changes(a: &[&str], b: &[&str]) -> Vec<Run> {
    let mut runs = Vec::new();
    let (mut at_a, mut at_b) = (0, 0);
    let end = Block { a: a.len(), b: b.len(), len: 0 };
    for block in blocks(a, b).into_iter().chain([end]) {
        if at_a < block.a || at_b < block.b {
            runs.push(Run { same: false, a: at_a..block.a, b: at_b..block.b });
        }
        (at_a, at_b) = (block.a + block.len, block.b + block.len);
        if block.len > 0 {
            runs.push(Run { same: true, a: block.a..at_a, b: block.b..at_b });
        }
    }
    runs
}

/// Splits the runs into groups: each change with its context, nearby changes together.
fn groups(mut runs: Vec<Run>) -> Vec<Vec<Run>> {
    if runs.iter().all(|run| run.same) {
        return Vec::new();
    }
    if let Some(first) = runs.first_mut().filter(|run| run.same) {
        keep_tail(first);
    }
    if let Some(last) = runs.last_mut().filter(|run| run.same) {
        keep_head(last);
    }
    let mut groups = vec![Vec::new()];
    for run in runs {
        let far = run.same && run.a.len() > 2 * CONTEXT;
        if far {
            let mut head = run.clone();
            keep_head(&mut head);
            if let Some(group) = groups.last_mut() {
                group.push(head);
            }
            let mut tail = run;
            keep_tail(&mut tail);
            groups.push(vec![tail]);
        } else if let Some(group) = groups.last_mut() {
            group.push(run);
        }
    }
    groups.retain(|group| group.iter().any(|run| !run.same));
    groups
}

fn keep_head(run: &mut Run) {
    run.a.end = run.a.end.min(run.a.start + CONTEXT);
    run.b.end = run.b.end.min(run.b.start + CONTEXT);
}

fn keep_tail(run: &mut Run) {
    run.a.start = run.a.start.max(run.a.end.saturating_sub(CONTEXT));
    run.b.start = run.b.start.max(run.b.end.saturating_sub(CONTEXT));
}

/// Common blocks in order, adjacent ones joined.
fn blocks(a: &[&str], b: &[&str]) -> Vec<Block> {
    let positions = positions(b);
    let mut found = Vec::new();
    let mut open = vec![(0..a.len(), 0..b.len())];
    while let Some((in_a, in_b)) = open.pop() {
        let block = longest(a, b, &positions, in_a.clone(), in_b.clone());
        if block.len == 0 {
            continue;
        }
        found.push(block);
        open.push((in_a.start..block.a, in_b.start..block.b));
        open.push((block.a + block.len..in_a.end, block.b + block.len..in_b.end));
    }
    found.sort_by_key(|block| block.a);
    let mut joined: Vec<Block> = Vec::new();
    for block in found {
        match joined.last_mut() {
            Some(last) if last.a + last.len == block.a && last.b + last.len == block.b => {
                last.len += block.len;
            }
            _ => joined.push(block),
        }
    }
    joined
}

/// Positions of each line in `b`, without very frequent lines.
fn positions<'a>(b: &[&'a str]) -> HashMap<&'a str, Vec<usize>> {
    let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in b.iter().enumerate() {
        positions.entry(line).or_default().push(at);
    }
    if b.len() >= COMMON_LINES_FROM {
        let limit = b.len() / 100 + 1;
        positions.retain(|_, at| at.len() <= limit);
    }
    positions
}

/// Longest common block in these ranges; of equal ones the first in `a`, then in `b`.
fn longest(
    a: &[&str],
    b: &[&str],
    positions: &HashMap<&str, Vec<usize>>,
    in_a: Range<usize>,
    in_b: Range<usize>,
) -> Block {
    let mut best = Block { a: in_a.start, b: in_b.start, len: 0 };
    // Length of the common block that ends at the previous line of `a` and at this line of `b`.
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for i in in_a.clone() {
        let mut next = HashMap::new();
        let standing = a.get(i).and_then(|line| positions.get(line)).map_or(&[][..], Vec::as_slice);
        for &j in standing.iter().filter(|j| in_b.contains(j)) {
            let len = 1 + j.checked_sub(1).and_then(|j| lengths.get(&j)).copied().unwrap_or(0);
            next.insert(j, len);
            if len > best.len {
                best = Block { a: i + 1 - len, b: j + 1 - len, len };
            }
        }
        lengths = next;
    }
    // Lines that cannot start a block may still extend one.
    while best.a > in_a.start && best.b > in_b.start && a.get(best.a - 1) == b.get(best.b - 1) {
        best = Block { a: best.a - 1, b: best.b - 1, len: best.len + 1 };
    }
    while best.a + best.len < in_a.end
        && best.b + best.len < in_b.end
        && a.get(best.a + best.len) == b.get(best.b + best.len)
    {
        best.len += 1;
    }
    best
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn lines(range: Range<usize>) -> Vec<String> {
        range.map(|n| n.to_string()).collect()
    }

    #[test]
    fn change_has_three_lines_of_context() {
        let a = lines(1..21);
        let mut b = a.clone();
        b[9] = "ten".to_owned();
        assert_eq!(
            unified(&a.join("\n"), &b.join("\n")),
            "@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
        );
    }

    #[test]
    fn distant_changes_are_separate_hunks() {
        let a = lines(1..41);
        let mut b = a.clone();
        b.remove(1);
        b.push("41".to_owned());
        assert_eq!(
            unified(&a.join("\n"), &b.join("\n")),
            "@@ -1,5 +1,4 @@\n 1\n-2\n 3\n 4\n 5\n@@ -38,3 +37,4 @@\n 38\n 39\n 40\n+41\n"
        );
    }

    #[test]
    fn equal_texts_have_no_diff() {
        assert_eq!(unified("a\nb", "a\nb"), "");
    }

    #[test]
    fn one_line_has_no_length_in_the_header() {
        assert_eq!(unified("a", "b"), "@@ -1 +1 @@\n-a\n+b\n");
    }

    #[test]
    fn frequent_line_does_not_start_a_block_in_a_long_text() {
        // 300 lines, half of them the same closing brace: the numbers determine the match.
        let text = |skip: usize| {
            (0..150)
                .filter(|n| *n != skip)
                .flat_map(|n| [n.to_string(), "}".to_owned()])
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(
            unified(&text(150), &text(75)),
            "@@ -148,8 +148,6 @@\n }\n 74\n }\n-75\n-}\n 76\n }\n 77\n"
        );
    }

    #[test]
    fn overlong_text_is_not_compared() {
        assert_eq!(unified(&"a\n".repeat(MAX_LINES + 1), "b"), "");
    }
}
