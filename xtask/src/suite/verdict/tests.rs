use super::*;

/// The log of a run of end-to-end cases.
fn log(passed: &[&str], failed: &[&str]) -> String {
    let mut log = "     Running tests/e2e/main.rs (target/debug/deps/e2e-01)\n\n".to_owned();
    log += &format!("running {} tests\n", passed.len() + failed.len());
    for (names, outcome) in [(passed, "ok"), (failed, "FAILED")] {
        for name in names {
            log += &format!("test {name} ... {outcome}\n");
        }
    }
    let counts = format!("{} passed; {} failed; 0 ignored", passed.len(), failed.len());
    log + &format!("\ntest result: {}. {counts}\n", if failed.is_empty() { "ok" } else { "FAILED" })
}

fn step(name: &str, kind: Kind, log: String, status: i32) -> Step {
    let (name, filters) = (name.to_owned(), Vec::new());
    Step { name, kind, filters, log, status: Some(status), limit: 600, seconds: 61 }
}

fn cases(name: &str, passed: &[&str], failed: &[&str]) -> Step {
    let status = if failed.is_empty() { 0 } else { 101 };
    step(name, Kind::Cases, log(passed, failed), status)
}

fn alone(case: &str, passes: bool) -> Step {
    let (passed, failed) = if passes { (vec![case], vec![]) } else { (vec![], vec![case]) };
    let status = if passes { 0 } else { 101 };
    step("alone", Kind::Alone(case.to_owned()), log(&passed, &failed), status)
}

fn rules(ci: bool) -> Rules {
    Rules { ci, end_to_end: false, today: jiff::civil::date(2026, 11, 18), status: 0 }
}

fn golden() -> Step {
    step(
        "unit",
        Kind::Tests,
        format!("golden_config::all: golden: config 45 of 45\n{}", log(&["u"], &[])),
        0,
    )
}

fn verdict(steps: &[Step], quarantine: &str, ci: bool) -> Verdict {
    let steps: Vec<Step> = std::iter::once(golden()).chain(steps.iter().cloned()).collect();
    of(&steps, quarantine, rules(ci))
}

/// Of a run that went as planned.
fn of(steps: &[Step], quarantine: &str, rules: Rules) -> Verdict {
    let planned: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
    Verdict::of(steps, &planned, Quarantine::parse(quarantine, rules.today), rules)
}

#[test]
fn case_that_fails_beside_others_and_passes_alone_fails_the_run_unless_quarantined() {
    let steps = [cases("e2e", &["a"], &["b"]), alone("b", true)];
    for (case, quarantine, ci, passes) in [
        ("no excuse", "", false, false),
        ("one in CI", "", true, true),
        ("quarantined", "b 2026-11-01 reason", false, true),
        ("another is quarantined", "a 2026-11-01 reason", false, false),
    ] {
        let verdict = verdict(&steps, quarantine, ci);
        assert_eq!(verdict.passed(), passes, "{case}");
        let text = verdict.to_string();
        assert!(
            text.contains("unsteady, failed beside others and passed alone: b in e2e"),
            "{text}"
        );
    }
}

#[test]
fn second_unsteady_case_fails_in_ci_unless_quarantined() {
    let steps = [cases("e2e", &["a"], &["b", "c"]), alone("b", true), alone("c", true)];
    assert!(!verdict(&steps, "", true).passed());
    assert!(verdict(&steps, "c 2026-11-01 reason", true).passed());
}

#[test]
fn unsteady_case_is_named_in_the_last_lines() {
    let steps = [cases("e2e", &["a"], &["b"]), alone("b", true)];
    let text = verdict(&steps, "", true).to_string();
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert_eq!(last[0], "2 passed, 0 failed, 1 unsteady, 0 skipped, 0 ignored");
    assert!(last[1].contains(": b in e2e; tolerated once with CI=true"), "{text}");
}

#[test]
fn case_that_fails_alone_as_well_is_failed_even_if_quarantined() {
    let steps = [cases("e2e", &["a"], &["b"]), alone("b", false)];
    let verdict = verdict(&steps, "b 2026-11-01 reason", true);
    assert_eq!(verdict.failed, ["b in e2e (tests/e2e/main.rs), e2e"]);
    assert!(!verdict.passed());
}

#[test]
fn case_that_is_unsteady_in_one_step_and_failed_in_a_later_one_stays_failed() {
    let steps = [
        cases("containerd 1.6", &["a"], &["b"]),
        alone("b", true),
        cases("containerd 2", &["a"], &["b"]),
        alone("b", false),
    ];
    let verdict = verdict(&steps, "", true);
    assert_eq!(verdict.failed, ["b in e2e (tests/e2e/main.rs), containerd 2"]);
    assert_eq!(verdict.unsteady.len(), 1);
    assert!(!verdict.passed());
}

#[test]
fn cases_that_were_not_run_again_are_failed() {
    let steps = [cases("e2e", &[], &["a", "b", "c", "d"])];
    assert_eq!(verdict(&steps, "", true).failed.len(), 4);
}

#[test]
fn repetition_that_ran_nothing_is_no_pass() {
    let empty = step("alone", Kind::Alone("b".to_owned()), log(&[], &[]), 0);
    let steps = [cases("e2e", &["a"], &["b"]), empty];
    assert_eq!(verdict(&steps, "", true).failed.len(), 1);
}

#[test]
fn step_without_named_failures_fails_by_its_own_name() {
    let command = |status| step("lints", Kind::Command, String::new(), status);
    let stopped = Step { status: None, ..command(0) };
    let late = Step { seconds: 660, ..command(137) };
    let not_built = "error: could not compile `podwright-node` (lib) due to 1 previous error\n";
    let aborted = "     Running tests/e2e/main.rs (target/debug/deps/e2e-01)\nrunning 2 tests\n\
                   test a ... ok\na::b: limit: exceeded its limit of 900 s\n";
    for (case, step, failures) in [
        ("a command", command(1), vec!["lints: ended with status 1"]),
        ("a limit", command(124), vec!["lints: exceeded its limit of 10 min"]),
        ("killed", command(137), vec!["lints: was killed"]),
        ("killed at its limit", late, vec!["lints: exceeded its limit of 10 min"]),
        ("stopped", stopped, vec!["lints: stopped before its end"]),
        (
            "a build",
            step("unit", Kind::Tests, not_built.to_owned(), 101),
            vec!["unit: cannot compile `podwright-node` (lib) due to 1 previous error"],
        ),
        (
            "an abort",
            step("e2e", Kind::Cases, aborted.to_owned(), 101),
            vec![
                "e2e: e2e (tests/e2e/main.rs) ended without a result, 1 of 2 tests have none",
                "a::b: exceeded its limit of 900 s",
            ],
        ),
        ("nothing", step("e2e", Kind::Cases, log(&[], &[]), 0), vec!["e2e: no test ran"]),
        (
            "no reason",
            step("e2e", Kind::Cases, log(&["a"], &[]), 1),
            vec!["e2e: ended with status 1"],
        ),
    ] {
        let verdict = verdict(&[step], "", false);
        assert_eq!(verdict.failed, failures, "{case}");
        assert!(!verdict.passed(), "{case}");
    }
}

#[test]
fn failed_unit_test_is_failed_and_never_unsteady() {
    let step = step("unit", Kind::Tests, log(&["a"], &["b"]), 101);
    let verdict = verdict(&[step, alone("b", true)], "", true);
    assert_eq!((verdict.failed.len(), verdict.unsteady.len()), (1, 0));
}

#[test]
fn retry_inside_a_test_counts_as_unsteady() {
    let log = format!(
        "golden::pods: unsteady: 07-probes: differed beside others\n{}",
        log(&["golden::pods"], &[])
    );
    let steps = [step("e2e", Kind::Cases, log, 0)];
    assert!(!verdict(&steps, "", false).passed());
    let text = verdict(&steps, "", true).to_string();
    assert!(text.contains("golden::pods/07-probes (differed beside others) in e2e"), "{text}");
    for (case, quarantine, passes) in [
        ("that part", "golden::pods/07-probes 2026-11-01 reason", true),
        ("another part", "golden::pods/08-probes 2026-11-01 reason", false),
        ("the whole test, which did not fail", "golden::pods 2026-11-01 reason", false),
    ] {
        assert_eq!(verdict(&steps, quarantine, false).passed(), passes, "{case}");
    }
}

#[test]
fn quarantined_case_that_did_not_run_fails_a_full_run() {
    let golden_pods = "golden::pods: golden: pods 45 of 45\n";
    let ran =
        |notes: &str| step("e2e", Kind::Cases, format!("{notes}{}", log(&["a", "b"], &[])), 0);
    for (case, quarantine, notes, end_to_end, passes) in [
        ("it ran", "a 2026-11-01 reason", "", true, true),
        ("a part of it", "a/07 2026-11-01 reason", "", true, true),
        ("none of that name", "renamed 2026-11-01 reason", "", true, false),
        ("it skipped", "a 2026-11-01 reason", "a: skipped: no VM\n", true, false),
        ("./test --quick", "a 2026-11-01 reason", "", false, true),
    ] {
        let mut steps = vec![golden()];
        if end_to_end {
            steps.push(ran(&format!("{golden_pods}{notes}")));
        }
        let verdict = of(&steps, quarantine, Rules { end_to_end, ..rules(true) });
        assert_eq!(verdict.passed(), passes, "{case}: {:?}", verdict.failed);
    }
}

#[test]
fn filter_that_matches_no_test_fails_by_its_name() {
    let filters = vec!["a::".to_owned(), "b::".to_owned()];
    let step = Step { filters, ..cases("e2e", &["a::x", "other::b::y"], &[]) };
    assert_eq!(verdict(&[step], "", false).failed, ["e2e: no test of b:: ran"]);
}

#[test]
fn planned_step_that_never_began_and_step_without_a_plan_fail() {
    let planned = ["unit", "e2e"].map(str::to_owned);
    let verdict = |steps: &[Step]| {
        Verdict::of(steps, &planned, Quarantine::parse("", rules(false).today), rules(false))
    };
    let ended = [golden(), cases("e2e", &["a"], &[])];
    assert!(verdict(&ended).passed());
    assert_eq!(verdict(&[golden()]).failed, ["e2e: never began"]);
    let more = [&ended[..], &[step("lints", Kind::Command, String::new(), 0)]].concat();
    assert_eq!(verdict(&more).failed, ["lints: is not in the plan of ./test"]);
}

#[test]
fn recordings_are_required_in_ci() {
    let with = |note: &str| {
        let log = format!("{note}{}", log(&["a"], &[]));
        let step = step("unit", Kind::Tests, log, 0);
        of(&[step], "", rules(true)).passed()
    };
    assert!(with("a: golden: config 45 of 45\n"));
    for (note, why) in [
        ("config 0 of 0", "none"),
        ("config 0 of 45", "none of them matches"),
        ("config accepted 45 of 45", "a unit test that only reads the same files"),
        ("config many of 45", "not a number"),
    ] {
        assert!(!with(&format!("a: golden: {note}\n")), "{why}");
    }
    assert!(!with("a: skipped: PODWRIGHT_GOLDEN names no directory of recordings\n"));
    let full = Rules { end_to_end: true, ..rules(true) };
    let mut accepted = golden();
    accepted.log.insert_str(0, "pods_are_valid: golden: pods accepted 51 of 51\n");
    let missing = of(&[accepted], "", full).failed;
    assert!(missing[0].starts_with("golden pods: no recording was compared"), "{missing:?}");
}

#[test]
fn skips_are_counted_by_reason_and_listed_by_name() {
    let log = format!(
        "a::x: skipped: needs root\na::y: skipped: needs root\nb: skipped: no VM\n{}",
        log(&["a::x", "a::y", "b"], &[])
    );
    let text = verdict(&[step("unit", Kind::Tests, log, 0)], "", false).to_string();
    assert!(text.contains("skipped 2: needs root: a::x, a::y\n"), "{text}");
    assert!(text.contains("skipped 1: no VM: b\n") && text.contains(" 3 skipped,"), "{text}");
}

#[test]
fn quarantine_that_cannot_be_read_fails_and_an_old_entry_is_overdue() {
    let broken = of(&[golden()], "b", rules(false));
    assert!(!broken.passed() && broken.failed[0].starts_with("quarantine: "));
    let text = verdict(&[], "b 2026-10-01 reason", false).to_string();
    assert!(text.contains("quarantine: b since 2026-10-01, overdue: reason"), "{text}");
}

#[test]
fn early_stop_is_a_failure_beside_others() {
    let stopped = Rules { status: 130, ..rules(false) };
    for (steps, failures) in
        [(vec![golden()], 1), (vec![golden(), cases("e2e", &["a"], &["b"]), alone("b", false)], 2)]
    {
        let failed = of(&steps, "", stopped).failed;
        assert_eq!(failed.len(), failures, "{failed:?}");
        assert!(failed.contains(&"./test stopped early, with status 130".to_owned()), "{failed:?}");
    }
}

/// Another thread's note falls between a name and its outcome: libtest writes them separately.
const TORN: &str = "test c ... a: skipped: needs root\nFAILED\n";

#[test]
fn failure_whose_line_was_torn_by_a_note_is_not_excused_by_an_unsteady_case() {
    let complete = log(&["a"], &["b", "c"]);
    for (case, failures, expected) in [
        ("listed at the end", "failures:\n    b\n    c\n\n", "c in e2e (tests/e2e/main.rs), e2e"),
        ("not listed", "", "e2e: 1 failure without a name in e2e (tests/e2e/main.rs)"),
    ] {
        let log = complete.replace("test c ... FAILED\n", &format!("{TORN}{failures}"));
        let steps = [step("e2e", Kind::Cases, log, 101), alone("b", true)];
        let verdict = verdict(&steps, "", true);
        assert_eq!(verdict.failed, [expected], "{case}");
        assert_eq!(verdict.unsteady.len(), 1, "{case}");
    }
}

#[test]
fn case_that_only_skips_when_alone_has_not_passed_alone() {
    let mut skips = alone("b", true);
    skips.log.insert_str(0, "b: skipped: no VM\n");
    let steps = [cases("e2e", &["a"], &["b"]), skips];
    assert_eq!(verdict(&steps, "", true).failed.len(), 1);
}

#[test]
fn skips_of_one_name_in_two_binaries_are_two() {
    let of = |binary: &str| {
        log(&["needs"], &[])
            .replace("tests/e2e/main.rs (target/debug/deps/e2e-01)", binary)
            .replace("running 1 tests\n", "running 1 tests\nneeds: skipped: needs root\n")
    };
    let both =
        of("tests/a.rs (target/debug/deps/a-01)") + &of("tests/b.rs (target/debug/deps/b-01)");
    let text = verdict(&[step("unit", Kind::Tests, both, 0)], "", false).to_string();
    assert!(text.contains("skipped 2: needs root"), "{text}");
}
