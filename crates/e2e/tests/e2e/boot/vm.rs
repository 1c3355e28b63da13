//! VM self-test: systemd, cgroup v2, its files, and the result of its script. The case of the units
//! covers that written data survives a reboot.

use podwright_e2e::vm::Vm;

use crate::privilege::{LONGER, needs_root, needs_vm};

const SCRIPT: &str = r#"#!/bin/sh
echo "pid 1 is $(cat /proc/1/comm)"
stat -f -c %T /sys/fs/cgroup
cat /payload/below/greeting
systemd-run --quiet --wait --unit=limited -p MemoryMax=64M \
    sh -c 'cat /sys/fs/cgroup/system.slice/limited.service/memory.max >/limit'
cat /limit
systemctl start containerd && ctr version | grep -A1 Server
exit 3
"#;

#[tokio::test]
async fn vm_has_systemd_and_cgroup_v2_and_returns_the_script_status() {
    needs_root!(LONGER);
    needs_vm!();
    let greeting = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(greeting.path(), "good morning\n").unwrap();
    let vm = Vm::new(SCRIPT).file("below/greeting", greeting.path());

    let outcome = vm.run().await.unwrap();
    assert_eq!(outcome.status, 3, "{}", outcome.output);
    let lines: Vec<_> = outcome.output.lines().collect();
    let want = ["pid 1 is systemd", "cgroup2fs", "good morning", "67108864", "Server:"];
    assert_eq!(lines.get(..want.len()), Some(&want[..]), "{}", outcome.output);
}
