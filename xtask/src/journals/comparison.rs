//! Comparison of two directories of journals, file by file and line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// How many files that differ are shown with their first difference.
const SHOWN: usize = 10;
/// How many equal lines are shown before a difference.
const BEFORE: usize = 3;
/// How much of a line is shown, from shortly before where it differs.
const WIDTH: usize = 400;

#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Files of both sides together.
    pub(crate) files: usize,
    only_in_base: Vec<PathBuf>,
    only_in_head: Vec<PathBuf>,
    differing: Vec<Difference>,
    /// Files that differ between two runs of one side as well: they say nothing about the change.
    unstable: Vec<PathBuf>,
}

/// First difference between two journals.
#[derive(Debug)]
struct Difference {
    file: PathBuf,
    /// Counts from one.
    line: usize,
    before: Vec<String>,
    base: Option<String>,
    head: Option<String>,
    /// For each kind of line (`cri`, `api`, `event`): how many more of them head has.
    more: BTreeMap<&'static str, i64>,
}

impl Comparison {
    pub(crate) fn of(base: &Path, head: &Path) -> anyhow::Result<Self> {
        let (in_base, in_head) = (files(base)?, files(head)?);
        let mut this = Self { files: in_base.union(&in_head).count(), ..Self::default() };
        this.only_in_base.extend(in_base.difference(&in_head).cloned());
        this.only_in_head.extend(in_head.difference(&in_base).cloned());
        for file in in_base.intersection(&in_head) {
            let read = |directory: &Path| {
                let path = directory.join(file);
                fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
            };
            this.differing.extend(Difference::between(file, &read(base)?, &read(head)?));
        }
        Ok(this)
    }

    /// Sets aside the files that a second run of a side wrote differently. `again` are pairs of the
    /// directories of a first and a second run of one side.
    pub(crate) fn without_unstable(mut self, again: [(&Path, &Path); 2]) -> Self {
        let differs = |file: &Path, (first, second): (&Path, &Path)| {
            fs::read(first.join(file)).ok() != fs::read(second.join(file)).ok()
        };
        let is_unstable = |file: &Path| again.into_iter().any(|runs| differs(file, runs));
        let (unstable, differing) =
            self.differing.into_iter().partition(|difference| is_unstable(&difference.file));
        let unstable: Vec<Difference> = unstable;
        self.unstable = unstable.into_iter().map(|difference| difference.file).collect();
        self.differing = differing;
        self
    }

    pub(crate) fn is_same(&self) -> bool {
        self.only_in_base.is_empty() && self.only_in_head.is_empty() && self.differing.is_empty()
    }
}

impl Difference {
    fn between(file: &Path, base: &str, head: &str) -> Option<Self> {
        if base == head {
            return None;
        }
        let (base, head): (Vec<&str>, Vec<&str>) = (base.lines().collect(), head.lines().collect());
        let same = base.iter().zip(&head).take_while(|(base, head)| base == head).count();
        let before = base.iter().take(same).skip(same.saturating_sub(BEFORE));
        let mut more = BTreeMap::new();
        for (lines, count) in [(&head, 1), (&base, -1)] {
            for line in lines.iter().skip(same) {
                *more.entry(kind(line)).or_default() += count;
            }
        }
        Some(Self {
            file: file.to_owned(),
            line: same + 1,
            before: before.map(|line| (*line).to_owned()).collect(),
            base: base.get(same).map(|line| (*line).to_owned()),
            head: head.get(same).map(|line| (*line).to_owned()),
            more,
        })
    }
}

/// Kind of a journal line: its second word.
fn kind(line: &str) -> &'static str {
    match line.split(' ').nth(1) {
        Some("cri") => "cri",
        Some("api") => "api",
        Some("event") => "event",
        _ => "other",
    }
}

/// All files below a directory, by their paths in it.
fn files(directory: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        let entries = fs::read_dir(&next).with_context(|| format!("read {}", next.display()))?;
        for entry in entries {
            let path = entry?.path();
            match path.is_dir() {
                true => left.push(path),
                false => drop(found.insert(path.strip_prefix(directory)?.to_owned())),
            }
        }
    }
    Ok(found)
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, only_in_base, only_in_head, differing, unstable } = self;
        let different = only_in_base.len() + only_in_head.len() + differing.len();
        let same = files - different - unstable.len();
        write!(f, "{files} journals, {same} the same, {different} different")?;
        if !unstable.is_empty() {
            write!(f, ", {} unstable", unstable.len())?;
        }
        writeln!(f)?;
        for file in unstable {
            writeln!(f, "differs between two runs of one side, not compared: {}", file.display())?;
        }
        for (which, files) in [("base", only_in_base), ("head", only_in_head)] {
            for file in files {
                writeln!(f, "only in {which}: {}", file.display())?;
            }
        }
        for difference in differing.iter().take(SHOWN) {
            write!(f, "{difference}")?;
        }
        for difference in differing.iter().skip(SHOWN) {
            writeln!(f, "also different: {}:{}", difference.file.display(), difference.line)?;
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}:{}", self.file.display(), self.line)?;
        for (kind, more) in self.more.iter().filter(|(_, more)| **more != 0) {
            write!(f, ", {more:+} {kind} lines")?;
        }
        writeln!(f)?;
        for line in &self.before {
            writeln!(f, "  {}", part(line, 0))?;
        }
        let (base, head) = (self.base.as_deref(), self.head.as_deref());
        let same = base.zip(head).map_or(0, |(base, head)| {
            base.chars().zip(head.chars()).take_while(|(base, head)| base == head).count()
        });
        for (sign, line) in [('-', base), ('+', head)] {
            writeln!(f, "{sign} {}", line.map_or("(ends here)".to_owned(), |l| part(l, same)))?;
        }
        Ok(())
    }
}

/// The part of a line around its difference, which is after `same` characters.
fn part(line: &str, same: usize) -> String {
    let start = if same > WIDTH / 2 { same - WIDTH / 4 } else { 0 };
    let mut part: String = line.chars().skip(start).take(WIDTH).collect();
    if start > 0 {
        part = format!("…{part}");
    }
    if line.chars().count() > start + WIDTH {
        part.push('…');
    }
    part
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const JOURNAL: &str = "0.000 cri 0 > Version {}\n0.010 cri 0 < Version OK\n\
                        0.020 event Normal Started Pod default/web: \"Started\"\n";

    /// Directories with these journals: name and text.
    fn journals(sides: [&[(&str, &str)]; 2]) -> [tempfile::TempDir; 2] {
        sides.map(|files| {
            let directory = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = directory.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            directory
        })
    }

    fn compared(sides: [&[(&str, &str)]; 2]) -> (bool, String) {
        let [base, head] = journals(sides);
        let comparison = Comparison::of(base.path(), head.path()).unwrap();
        (comparison.is_same(), comparison.to_string())
    }

    #[test]
    fn equal_journals_are_the_same() {
        let files = [("chaos/0001.journal", JOURNAL), ("life/0001.journal", JOURNAL)];
        let (same, text) = compared([&files, &files]);
        assert_eq!((same, text.as_str()), (true, "2 journals, 2 the same, 0 different\n"));
    }

    #[test]
    fn changed_line_is_shown_with_both_versions_and_preceding_lines() {
        let changed = JOURNAL.replace("Normal Started", "Normal Began");
        let (same, text) = compared([&[("a", JOURNAL)], &[("a", &changed)]]);
        assert!(!same);
        assert_eq!(
            text,
            "1 journals, 0 the same, 1 different\n\na:3\n  0.000 cri 0 > Version {}\n  \
             0.010 cri 0 < Version OK\n- 0.020 event Normal Started Pod default/web: \"Started\"\n\
             + 0.020 event Normal Began Pod default/web: \"Started\"\n"
        );
    }

    #[test]
    fn irreproducible_journal_is_set_aside_and_listed() {
        let changed = JOURNAL.replace("Normal Started", "Normal Began");
        let first = [("drawn", JOURNAL), ("changed", JOURNAL)];
        let second = [("drawn", changed.as_str()), ("changed", changed.as_str())];
        let [base, head] = journals([&first, &second]);
        for (case, base_again, unstable, different) in [
            ("base is the same again", first, 0, 2),
            ("one of base is not", [second[0], first[1]], 1, 1),
            ("one is not there again", [first[1], first[1]], 1, 1),
        ] {
            let [base_again, head_again] = journals([&base_again, &second]);
            let comparison = Comparison::of(base.path(), head.path()).unwrap();
            let comparison = comparison.without_unstable([
                (base.path(), base_again.path()),
                (head.path(), head_again.path()),
            ]);
            assert_eq!(comparison.unstable.len(), unstable, "{case}");
            assert_eq!(comparison.differing.len(), different, "{case}");
            assert!(!comparison.is_same(), "{case}");
            let listed = comparison.to_string().contains("not compared: drawn");
            assert_eq!(listed, unstable > 0, "{case}: {comparison}");
        }
    }

    #[test]
    fn a_missing_line_and_a_missing_file_are_differences() {
        let shorter: String = JOURNAL.lines().take(2).map(|line| format!("{line}\n")).collect();
        let base = [("a", JOURNAL), ("b", JOURNAL)];
        let (same, text) = compared([&base, &[("a", &shorter)]]);
        assert!(!same);
        assert!(text.contains("2 journals, 0 the same, 2 different"), "{text}");
        assert!(text.contains("only in base: b"), "{text}");
        assert!(text.contains("a:3, -1 event lines") && text.contains("+ (ends here)"), "{text}");
    }
}
