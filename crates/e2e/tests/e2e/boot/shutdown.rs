//! Graceful node shutdown in the VM: the real login manager delays a reboot until the pods have
//! ended, and nothing that they write on the way is lost.

use std::path::Path;
use std::time::Duration;

use podwright_e2e::images;
use podwright_e2e::tools;
use podwright_e2e::vm::Vm;

use crate::privilege::{LONGER, needs_root, needs_vm};

const LIMIT: Duration = Duration::from_secs(20 * 60);

#[tokio::test]
async fn reboot_waits_for_the_last_writes_of_pods_and_not_for_one_that_ignores_sigterm() {
    needs_root!(LONGER);
    needs_vm!();
    let archives = images::archives().unwrap();
    let mut names = archives.iter().flat_map(|archive| &archive.names);
    let pause = names.find(|name| name.contains("/pause:")).unwrap();
    let script = include_str!("shutdown/payload.sh").replace("@PAUSE@", pause);
    let unit = "podwright-kubelet.service";
    let mut vm = Vm::new(script)
        .limit(LIMIT)
        .file("podwright", tools::podwright().unwrap())
        .file(format!("units/{unit}"), tools::repository().join("packaging/systemd").join(unit));
    for archive in &archives {
        let name = Path::new("images").join(archive.path.file_name().unwrap());
        vm = vm.file(name, &archive.path);
    }
    let outcome = vm.run().await.unwrap();
    let lines: Vec<_> = outcome.output.lines().filter(|line| !line.starts_with("took ")).collect();
    let want = [
        "shutdowns are delayed for t 40000000",
        "the reboot was not held up",
        "normal wrote 5 last lines, 1 complete",
        "critical wrote 5 last lines, 1 complete",
        "the critical pod ended after the normal one",
        "the shutdown is recorded",
    ];
    assert!(lines == want, "{}\nconsole:\n{}", outcome.output, outcome.console);
    assert_eq!(outcome.status, 0, "{}", outcome.output);
}
