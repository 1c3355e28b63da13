//! Out-of-memory kills of the machine, from the kernel's log.
//!
//! A kill because of the limit of a cgroup is an ordinary event of a container. One without such a
//! limit means that the machine itself ran out of memory.

/// Reason of the node's Events.
pub const EVENT: &str = "SystemOOM";

/// Longest name of a process in the kernel's log; the kernel keeps 15 bytes and escapes some to four.
const MAX_NAME: usize = 60;

/// A process that the kernel killed because the machine was out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemOom {
    pub process: String,
    pub pid: u32,
}

impl SystemOom {
    /// The text of the Event.
    pub fn message(&self) -> String {
        format!("System OOM encountered, victim process: {}, pid: {}", self.process, self.pid)
    }
}

/// What has been read of the current kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomReader {
    report: Option<Report>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Report {
    /// A line has named the cgroup whose limit was hit.
    in_cgroup: bool,
}

impl OomReader {
    /// Reads the next record of `/dev/kmsg`, which starts with its level and time. Returns the
    /// victim once the machine's kill is complete.
    pub fn read(&mut self, record: &str) -> Option<SystemOom> {
        let (_, text) = record.split_once(';')?;
        // The lines after the first describe the device.
        let line = text.lines().next()?;
        if line.contains(" invoked oom-killer:") {
            self.report = Some(Report { in_cgroup: false });
            return None;
        }
        let report = self.report.as_mut()?;
        if line.contains(" killed as a result of limit of ") {
            // Kernels before 5.0.
            report.in_cgroup |= !line.ends_with(" killed as a result of limit of /");
            return None;
        }
        let (victim, in_cgroup) = match line.strip_prefix("oom-kill:constraint=") {
            Some(fields) => (victim_of_fields(fields)?, names_cgroup(fields)),
            None => (victim_of_sentence(line)?, report.in_cgroup),
        };
        self.report = None;
        (!in_cgroup).then_some(victim)
    }
}

/// Whether the limit of a cgroup other than the root was hit.
fn names_cgroup(fields: &str) -> bool {
    let after = fields.split_once(",oom_memcg=").map(|(_, after)| after);
    let cgroup =
        after.map(|after| after.split_once(",task_memcg=").map_or(after, |(name, _)| name));
    cgroup.is_some_and(|cgroup| cgroup != "/")
}

/// From `…,task=NAME,pid=1,uid=0`. The name may contain anything, so the end is read first.
fn victim_of_fields(fields: &str) -> Option<SystemOom> {
    const NAME: &str = ",task=";
    let (rest, _) = fields.rsplit_once(",uid=").unwrap_or((fields, ""));
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let near_end = rest.len().saturating_sub(MAX_NAME + NAME.len());
    let (start, _) = rest.match_indices(NAME).find(|(start, _)| *start >= near_end)?;
    let name = rest.get(start + NAME.len()..)?;
    Some(SystemOom { process: name.to_owned(), pid: pid.parse().ok()? })
}

/// From `…Killed process 1 (NAME) total-vm:…`.
fn victim_of_sentence(line: &str) -> Option<SystemOom> {
    let (_, rest) = line.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    // Kernels before 4.19 have a comma after the number.
    let pid = pid.trim_end_matches(',').parse().ok()?;
    let (name, _) = rest.rsplit_once(')')?;
    let shortened = name.char_indices().nth(MAX_NAME).and_then(|(end, _)| name.get(..end));
    Some(SystemOom { process: shortened.unwrap_or(name).to_owned(), pid })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INVOKED: &str = "4,900,100,-;stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n";

    fn victims(records: &[&str]) -> Vec<(String, u32)> {
        let mut reader = OomReader::default();
        let found = records.iter().filter_map(|record| reader.read(record));
        found.map(|oom| (oom.process, oom.pid)).collect()
    }

    fn fields(limit: &str, name: &str) -> String {
        format!(
            "6,950,200,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
             {limit}task_memcg=/system.slice/a.service,task={name},pid=4242,uid=0\n"
        )
    }

    // The reference, row 50.
    #[test]
    fn only_a_kill_without_the_limit_of_a_cgroup_is_the_machines() {
        for (limit, want) in [
            ("global_oom,", true),
            ("", true),
            ("oom_memcg=/,", true),
            ("oom_memcg=/kubepods/pod1,", false),
            ("oom_memcg=/kubepods,", false),
        ] {
            let found = victims(&[INVOKED, &fields(limit, "stress")]);
            let victim = want.then(|| ("stress".to_owned(), 4242));
            assert_eq!(found, Vec::from_iter(victim), "{limit}");
        }
        let text = SystemOom { process: "stress".into(), pid: 7 }.message();
        assert_eq!(text, "System OOM encountered, victim process: stress, pid: 7");
    }

    #[test]
    fn sentence_of_the_kernel_ends_a_kill_too() {
        let sentence =
            "3,951,201,-;Out of memory: Killed process 77 (a (b) c) total-vm:1kB, anon-rss:2kB\n";
        let want = vec![("a (b) c".to_owned(), 77)];
        assert_eq!(victims(&[INVOKED, sentence]), want);
        assert_eq!(victims(&[INVOKED, sentence, sentence]), want, "the kill is over");
        assert!(victims(&[sentence]).is_empty(), "no kill began");
        assert_eq!(victims(&[INVOKED, &fields("", "x"), sentence]), [("x".to_owned(), 4242)]);
        let old = "6,1,1,-;Task in /kubepods/a killed as a result of limit of /kubepods/a\n";
        assert!(victims(&[INVOKED, old, sentence]).is_empty());
        let root = "6,1,1,-;Task in /kubepods/a killed as a result of limit of /\n";
        assert_eq!(victims(&[INVOKED, root, sentence]), want);
    }

    #[test]
    fn name_of_a_process_cannot_be_mistaken_for_the_other_fields() {
        for name in ["a,pid=1", ",task=init", "a,uid=0,pid=1", "x)", "(y", "a b"] {
            assert_eq!(victims(&[INVOKED, &fields("", name)]), [(name.to_owned(), 4242)], "{name}");
        }
        let of_cgroup = fields("oom_memcg=/a,task=init,", "real");
        assert!(victims(&[INVOKED, &of_cgroup]).is_empty());
    }

    #[test]
    fn line_of_a_program_that_looks_like_a_kill_needs_its_beginning() {
        let forged = fields("", "init").replace(";oom-kill", ";program: oom-kill");
        assert!(victims(&[INVOKED, &forged]).is_empty());
        assert!(victims(&["no record", ";", "1,2,3,-;", "Killed process 1 (x)"]).is_empty());
    }

    proptest! {
        #[test]
        fn no_record_panics(records in prop::collection::vec(
            prop_oneof![
                any::<String>(),
                any::<String>().prop_map(|text| format!("1,2,3,-;{text} invoked oom-killer: x")),
                any::<String>().prop_map(|text| format!("1,2,3,-;oom-kill:constraint={text},task={text},pid=1,uid=2")),
                any::<String>().prop_map(|text| format!("1,2,3,-;Killed process 1 ({text}) {text}")),
            ],
            0..8,
        )) {
            let mut reader = OomReader::default();
            for record in &records {
                if let Some(oom) = reader.read(record) {
                    prop_assert!(oom.process.chars().count() <= MAX_NAME);
                }
            }
        }
    }
}
