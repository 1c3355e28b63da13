//! systemd units and the agent on cgroup v2 with the systemd driver, in the VM: the kernel enforces
//! the limits, and containers keep running whatever happens to the agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use podwright_e2e::images;
use podwright_e2e::tools;
use podwright_e2e::vm::Vm;
use serde_json::Value;

use crate::privilege::{LONGER, needs_root, needs_vm};

/// Takes four minutes on an idle machine, several times that on a busy one. Shorter than the limit
/// of the case, so that the VM's output is reported.
const LIMIT: Duration = Duration::from_secs(24 * 60);

#[tokio::test]
async fn units_report_ready_limit_pods_and_leave_containers_alone() {
    needs_root!(LONGER);
    needs_vm!();
    let archives = images::archives().unwrap();
    let mut names = archives.iter().flat_map(|archive| &archive.names);
    let pause = names.find(|name| name.contains("/pause:")).unwrap();
    let script = include_str!("units/payload.sh").replace("@PAUSE@", pause);
    let mut vm = Vm::new(script).limit(LIMIT).file("podwright", tools::podwright().unwrap());
    for unit in ["podwright-kubelet.service", "podwright-up.service"] {
        let source = tools::repository().join("packaging/systemd").join(unit);
        vm = vm.file(format!("units/{unit}"), source);
    }
    for archive in &archives {
        let name = Path::new("images").join(archive.path.file_name().unwrap());
        vm = vm.file(name, &archive.path);
    }

    let outcome = vm.run().await.unwrap();
    let (pods, lines): (Vec<_>, Vec<_>) =
        outcome.output.lines().partition(|line| line.starts_with("pods: "));
    let want = [
        "podwright-kubelet is active",
        "its container is below /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort",
        "its pod has 39;100000 100000;67108864;",
        "its container has 39;100000 100000;67108864;",
        "podwright-kubelet stopped: its container keeps running",
        "podwright-kubelet started and restarted: the same process",
        "podwright-kubelet killed: restarted, the same process",
        "podwright-kubelet hung: restarted, the same process",
        "no cgroup is left",
        "podwright-up is active",
        "podwright-up stopped: its container keeps running",
        "podwright-up started and restarted: the same process",
        "podwright-up killed: restarted, the same process",
        "podwright-up hung: restarted, the same process",
        "down: nothing runs",
    ];
    let missing: Vec<_> = want.iter().filter(|line| !lines.contains(line)).collect();
    assert!(lines == want, "output:\n{}\nmissing: {missing:#?}", lines.join("\n"));
    assert_eq!(outcome.status, 0, "{}", outcome.output);

    let [before, after, rebooted] = pods.as_slice() else { panic!("{pods:#?}") };
    let (before, after, rebooted) = (instances(before), instances(after), instances(rebooted));
    assert_eq!(after, before, "the agent's restarts must not affect its pods");
    let greedy = &before["greedy-vm"];
    assert_eq!(greedy.end, Some(("OOMKilled".to_owned(), 137)));
    assert_eq!(
        rebooted.get("greedy-vm"),
        Some(greedy),
        "a completed run-once pod is not run again"
    );
    for name in ["one-vm", "limited-vm"] {
        assert_eq!((before[name].restarts, &before[name].end), (0, &None), "{name}");
        assert_eq!((rebooted[name].restarts, &rebooted[name].end), (1, &None), "{name}");
        assert_ne!(rebooted[name].container, before[name].container, "{name}");
    }
}

/// State of a pod's only container.
#[derive(Debug, PartialEq, Eq)]
struct Instance {
    container: String,
    restarts: u64,
    /// Reason and exit code, if it has exited.
    end: Option<(String, i64)>,
}

/// By pod name, from a line with the agent's list of pods.
fn instances(line: &str) -> BTreeMap<String, Instance> {
    let list: Value = serde_json::from_str(line.strip_prefix("pods: ").unwrap()).unwrap();
    let instance = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        let end = &status["state"]["terminated"];
        let instance = Instance {
            container: status["containerID"].as_str().unwrap_or_default().to_owned(),
            restarts: status["restartCount"].as_u64().unwrap_or_default(),
            end: end["reason"].as_str().map(str::to_owned).zip(end["exitCode"].as_i64()),
        };
        (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), instance)
    };
    list["items"].as_array().into_iter().flatten().map(instance).collect()
}
