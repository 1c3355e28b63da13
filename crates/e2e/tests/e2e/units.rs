//! The systemd units, in the VM: whatever becomes of the agent, containers run on.

use std::path::Path;

use podwright_e2e::images;
use podwright_e2e::tools;
use podwright_e2e::vm::Vm;

use crate::privilege::{needs_root, needs_vm};

#[tokio::test]
async fn units_report_ready_feed_the_watchdog_and_leave_containers_alone() {
    needs_root!();
    needs_vm!();
    let archives = images::archives().unwrap();
    let mut names = archives.iter().flat_map(|archive| &archive.names);
    let pause = names.find(|name| name.contains("/pause:")).unwrap();
    let script = include_str!("units/payload.sh").replace("@PAUSE@", pause);
    let mut vm = Vm::new(script).file("podwright", tools::podwright().unwrap());
    for unit in ["podwright-kubelet.service", "podwright-up.service"] {
        let source = tools::repository().join("packaging/systemd").join(unit);
        vm = vm.file(format!("units/{unit}"), source);
    }
    for archive in &archives {
        let name = Path::new("images").join(archive.path.file_name().unwrap());
        vm = vm.file(name, &archive.path);
    }

    let outcome = vm.run().await.unwrap();
    let lines: Vec<_> = outcome.output.lines().collect();
    let want = [
        "podwright-kubelet is active",
        "its container is below /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort",
        "podwright-kubelet stopped: its container runs on",
        "podwright-kubelet started and restarted: the same process",
        "podwright-kubelet hung: started anew, the same process",
        "podwright-up is active",
        "podwright-up stopped: its container runs on",
        "podwright-up started and restarted: the same process",
        "podwright-up hung: started anew, the same process",
        "down: nothing runs",
    ];
    assert_eq!(lines, want, "{}", outcome.output);
    assert_eq!(outcome.status, 0, "{}", outcome.output);
}
