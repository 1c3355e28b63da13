//! The systemd units and the agent on cgroup v2 with the systemd driver, in the VM: limits are the
//! kernel's, and whatever becomes of the agent, containers run on.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use podwright_e2e::images;
use podwright_e2e::tools;
use podwright_e2e::vm::Vm;
use serde_json::Value;

use crate::privilege::{LONGER, needs_root, needs_vm};

/// Four minutes on a machine that has nothing else to do; one that is busy takes some times that.
/// Less than the case has, so that what the machine said is seen.
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
        "podwright-kubelet stopped: its container runs on",
        "podwright-kubelet started and restarted: the same process",
        "podwright-kubelet killed: started anew, the same process",
        "podwright-kubelet hung: started anew, the same process",
        "no group is left",
        "podwright-up is active",
        "podwright-up stopped: its container runs on",
        "podwright-up started and restarted: the same process",
        "podwright-up killed: started anew, the same process",
        "podwright-up hung: started anew, the same process",
        "down: nothing runs",
    ];
    let missing: Vec<_> = want.iter().filter(|line| !lines.contains(line)).collect();
    assert!(lines == want, "it said:\n{}\nand did not say: {missing:#?}", lines.join("\n"));
    assert_eq!(outcome.status, 0, "{}", outcome.output);

    let [before, after, rebooted] = pods.as_slice() else { panic!("{pods:#?}") };
    let (before, after, rebooted) = (instances(before), instances(after), instances(rebooted));
    assert_eq!(after, before, "what becomes of the agent is nothing to its pods");
    let greedy = &before["greedy-vm"];
    assert_eq!(greedy.end, Some(("OOMKilled".to_owned(), 137)));
    assert_eq!(rebooted.get("greedy-vm"), Some(greedy), "what ran once is not run again");
    for name in ["one-vm", "limited-vm"] {
        assert_eq!((before[name].restarts, &before[name].end), (0, &None), "{name}");
        assert_eq!((rebooted[name].restarts, &rebooted[name].end), (1, &None), "{name}");
        assert_ne!(rebooted[name].container, before[name].container, "{name}");
    }
}

/// What a pod says of its only container.
#[derive(Debug, PartialEq, Eq)]
struct Instance {
    container: String,
    restarts: u64,
    /// Reason and code, if it ended.
    end: Option<(String, i64)>,
}

/// By the pod's name, of a line with the agent's list of pods.
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
