//! Commands other than `serve`.

use std::process::Command;

use crate::program::Program;
use rustix::process::Signal;

#[test]
fn exit_uses_its_code_and_writes_its_message() {
    let (status, _) = Program::start(&["exit", "42"]).end();
    assert_eq!(status.code(), Some(42));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("termination-log");
    let arguments = [
        "exit",
        "1",
        "--after",
        "0.01",
        "--message",
        "sorry",
        "--message-path",
        path.to_str().unwrap(),
    ];
    assert_eq!(Program::start(&arguments).end().0.code(), Some(1));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "sorry");
}

#[test]
fn signals_are_printed_and_ignored_ones_do_not_end_it() {
    let mut program = Program::start(&["signals", "--ignore", "TERM", "--ignore", "usr1"]);
    assert_eq!(program.line(), "waiting for signals");
    for (signal, name) in
        [(Signal::TERM, "SIGTERM"), (Signal::USR1, "SIGUSR1"), (Signal::WINCH, "SIGWINCH")]
    {
        program.send(signal);
        assert_eq!(program.line(), format!("received {name}"));
    }
    program.send(Signal::QUIT);
    let (status, output) = program.end();
    assert_eq!((status.code(), output.as_str()), (Some(0), "received SIGQUIT\n"));
}

#[test]
fn every_command_exits_with_zero_on_sigterm() {
    for (arguments, first_line) in [
        (&["alloc", "2", "--step", "2"][..], "holding 2 MiB"),
        (&["burn"], "burning on 1 threads"),
        (&["lines", "0", "--every", "1000000"], "line 1"),
    ] {
        let mut program = Program::start(arguments);
        assert_eq!(program.line(), first_line);
        program.send(Signal::TERM);
        assert_eq!(program.end().0.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn allocated_memory_is_resident() {
    let mut program = Program::start(&["alloc", "32", "--step", "16"]);
    assert_eq!(program.line(), "holding 16 MiB");
    assert_eq!(program.line(), "holding 32 MiB");
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib >= 32 << 10, "{kib} KiB resident");
}

#[test]
fn lines_go_to_the_selected_stream() {
    let output = Command::new(env!("CARGO_BIN_EXE_testserver"))
        .args(["lines", "4", "--bytes", "8", "--to", "both"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "line 1..\nline 3..\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "line 2..\nline 4..\n");
}

#[test]
fn zombie_leaves_orphans_that_are_not_its_own_children() {
    let mut program = Program::start(&["zombie", "2"]);
    let orphans: Vec<u32> =
        (0..2).map(|_| program.line().strip_prefix("orphan ").unwrap().parse().unwrap()).collect();
    assert_eq!(program.line(), "left 2 orphans");
    for orphan in orphans {
        // Already reaped, or waiting for process 1.
        if let Ok(stat) = std::fs::read_to_string(format!("/proc/{orphan}/stat")) {
            let parent = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap();
            assert_ne!(parent, program.id().to_string());
        }
    }
    program.send(Signal::INT);
    assert_eq!(program.end().0.code(), Some(0));
}
