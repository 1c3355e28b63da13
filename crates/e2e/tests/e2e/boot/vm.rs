//! The VM: systemd, cgroup v2, a disk that keeps what is written across a reboot.

use podwright_e2e::vm::Vm;

use crate::privilege::{needs_root, needs_vm};

const SCRIPT: &str = r#"#!/bin/sh
if [ ! -e /var/lib/seen ]; then
    echo "first life, pid 1 is $(cat /proc/1/comm)"
    touch /var/lib/seen
    exit 75
fi
echo "second life"
stat -f -c %T /sys/fs/cgroup
cat /payload/below/greeting
systemd-run --quiet --wait --unit=limited -p MemoryMax=64M \
    sh -c 'cat /sys/fs/cgroup/system.slice/limited.service/memory.max >/limit'
cat /limit
systemctl start containerd && ctr version | grep -A1 Server
exit 3
"#;

#[tokio::test]
async fn vm_has_systemd_and_cgroup_v2_and_survives_a_reboot() {
    needs_root!();
    needs_vm!();
    let greeting = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(greeting.path(), "good morning\n").unwrap();
    let vm = Vm::new(SCRIPT).file("below/greeting", greeting.path());

    let outcome = vm.run().await.unwrap();
    assert_eq!(outcome.status, 3, "{}", outcome.output);
    let lines: Vec<_> = outcome.output.lines().collect();
    let want = [
        "first life, pid 1 is systemd",
        "second life",
        "cgroup2fs",
        "good morning",
        "67108864",
        "Server:",
    ];
    assert_eq!(lines.get(..want.len()), Some(&want[..]), "{}", outcome.output);
}
