//! Checks on folders that pose as machines.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A folder as a machine.
struct Fixture {
    root: TempDir,
    busy: Vec<u16>,
    space: Space,
    runtime: Result<RuntimeReport, String>,
}

const ROOMY: Space =
    Space { bytes: 100 << 30, bytes_free: 50 << 30, inodes: 1000, inodes_free: 900 };

impl Fixture {
    /// A machine on which everything is right, with cgroup v2.
    fn healthy() -> Self {
        let fixture = Self {
            root: tempfile::tempdir().unwrap(),
            busy: Vec::new(),
            space: ROOMY,
            runtime: Ok(RuntimeReport {
                version: "containerd 1.6.20".to_owned(),
                runtime_ready: Ok(()),
                network_ready: Ok(()),
                images: vec!["registry.k8s.io/pause:3.9".to_owned()],
            }),
        };
        fixture
            .file("/proc/self/status", "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n")
            .file("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
            .file("/proc/filesystems", "nodev\tproc\nnodev\toverlay\n")
            .file("/proc/swaps", "Filename\tType\tSize\n")
            .file("/proc/sys/net/ipv4/ip_forward", "1\n")
            .file("/sys/module/bridge/refcnt", "0")
            .file("/lib/modules/6.1.0-18-amd64/modules.dep", "kernel/drivers/net/veth.ko.xz:\n")
            .file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n")
            .file("/usr/sbin/iptables", "")
            .file("/usr/bin/mount", "")
            .file("/usr/bin/nsenter", "")
            .file("/usr/sbin/runc", "")
            .file("/usr/bin/containerd", "")
            .file("/usr/lib/cni/loopback", "")
            .file("/usr/lib/cni/bridge", "")
            .file("/usr/lib/cni/host-local", "")
            .file("/opt/cni/bin/portmap", "")
            .file("/opt/cni/bin/bandwidth", "")
            .file("/etc/cni/net.d/10-pods.conflist", "{}")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn without(self, path: &str) -> Self {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        self
    }

    /// What is not in order, one line each.
    fn complaints(&self, plan: &Plan) -> Vec<String> {
        let findings = examine(self, plan);
        for finding in &findings {
            assert_eq!(finding.fix.is_some(), finding.verdict != Verdict::Ok, "{finding:?}");
        }
        findings
            .into_iter()
            .filter(|finding| finding.verdict != Verdict::Ok)
            .map(|finding| format!("{:?} {}: {}", finding.verdict, finding.check, finding.says))
            .collect()
    }
}

impl Machine for Fixture {
    fn root(&self) -> &Path {
        self.root.path()
    }

    fn listen(&self, address: SocketAddr) -> io::Result<()> {
        if self.busy.contains(&address.port()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        assert!(path.exists(), "asked about a folder that exists: {}", path.display());
        Ok(self.space)
    }

    fn runtime(&self, _: &str) -> Result<RuntimeReport, String> {
        self.runtime.clone()
    }
}

fn plan() -> Plan {
    Plan::with_runtime(None)
}

#[test]
fn on_a_healthy_machine_there_is_nothing_to_complain_about() {
    let machine = Fixture::healthy();
    assert_eq!(machine.complaints(&plan()), Vec::<String>::new());
    assert!(is_fit(&examine(&machine, &plan())));
}

#[test]
fn each_thing_that_is_wrong_is_said_alone() {
    let sick: [(Fixture, &str); 22] = [
        (
            Fixture::healthy().file("/proc/self/status", "Uid:\t1000\nCapEff:\t000001ffffffffff\n"),
            "Failure privileges: running as user 1000",
        ),
        (
            Fixture::healthy().file("/proc/self/status", "Uid:\t0\nCapEff:\t000001fffeffffff\n"),
            "Warning privileges: CAP_SYS_RESOURCE is missing, needed for protecting the agent and critical pods from the OOM killer",
        ),
        (
            Fixture::healthy().file("/proc/self/status", "Uid:\t0\nCapEff:\t000001ffffdfffff\n"),
            "Failure privileges: CAP_SYS_ADMIN is missing, needed for mounts and namespaces",
        ),
        (
            Fixture::healthy().file("/proc/self/status", "Uid:\t0\nCapEff:\t000001ffffffefff\n"),
            "Failure privileges: CAP_NET_ADMIN is missing, needed for pod networks",
        ),
        (
            Fixture::healthy().without("/proc/self/status"),
            "Failure privileges: /proc/self/status does not tell what this process may do",
        ),
        (
            Fixture::healthy()
                .file("/proc/sys/kernel/osrelease", "5.4.0\n")
                .file("/sys/module/veth/refcnt", ""),
            "Failure kernel: Linux 5.4.0 is too old",
        ),
        (
            Fixture::healthy().file("/proc/filesystems", "nodev\tproc\n"),
            "Warning kernel: cannot see overlay, needed for container file systems",
        ),
        (
            Fixture::healthy()
                .without("/lib/modules")
                .file("/boot/config-6.1.0-18-amd64", "# CONFIG_VETH is not set\n"),
            "Failure kernel: no veth, needed for the pod network",
        ),
        (
            Fixture::healthy()
                .without("/lib/modules")
                .file("/boot/config-6.1.0-18-amd64", "CONFIG_VETH=m\n"),
            "Warning kernel: cannot see veth, needed for the pod network",
        ),
        (
            Fixture::healthy().file("/sys/fs/cgroup/cgroup.controllers", "cpu cpuset\n"),
            "Failure cgroups: cgroup v2 without memory, pids",
        ),
        (
            Fixture::healthy().without("/sys/fs/cgroup/cgroup.controllers"),
            "Failure cgroups: no cgroup v2, and no cgroup v1 hierarchy for cpu, cpuacct, cpuset, memory, pids",
        ),
        (Fixture::healthy().without("/usr/sbin/iptables"), "Failure programs: no iptables"),
        (
            Fixture::healthy().without("/usr/sbin/runc"),
            "Failure programs: none of runc, crun, youki, which start containers",
        ),
        (
            Fixture::healthy().without("/opt/cni"),
            "Warning programs: no CNI plugins portmap, bandwidth, which `podwright up` needs",
        ),
        (
            Fixture::healthy().without("/usr/lib/cni/loopback"),
            "Failure programs: no CNI plugins loopback in /opt/cni/bin or /usr/lib/cni",
        ),
        (
            Fixture { runtime: Err("connection refused".to_owned()), ..Fixture::healthy() },
            "Warning runtime: no answer at unix:///run/containerd/containerd.sock: connection refused",
        ),
        (
            Fixture::healthy().without("/etc/cni/net.d/10-pods.conflist"),
            "Warning network: no pod network in /etc/cni/net.d",
        ),
        (
            Fixture::healthy().file("/proc/sys/net/ipv4/ip_forward", "0\n"),
            "Warning network: IPv4 is not forwarded, so pods reach nothing beyond this machine",
        ),
        (
            Fixture { busy: vec![10248, 10255], ..Fixture::healthy() },
            "Failure ports: 127.0.0.1:10248: address in use",
        ),
        (
            Fixture::healthy().file("/proc/swaps", "Filename\n/dev/sda2 partition\n"),
            "Warning swap: on: /dev/sda2; `podwright kubelet` refuses to start, `podwright up` does not mind",
        ),
        (
            Fixture {
                runtime: Fixture::healthy().runtime.map(|report| RuntimeReport {
                    images: vec!["docker.io/library/pausebox:1".to_owned()],
                    ..report
                }),
                ..Fixture::healthy()
            },
            "Warning runtime: no sandbox (pause) image yet; the runtime pulls the one it is configured for with the first pod",
        ),
        (
            Fixture {
                runtime: Fixture::healthy().runtime.map(|report| RuntimeReport {
                    runtime_ready: Err("shutting down".to_owned()),
                    ..report
                }),
                ..Fixture::healthy()
            },
            "Failure runtime: containerd 1.6.20 at unix:///run/containerd/containerd.sock is not ready: shutting down",
        ),
    ];
    for (machine, want) in sick {
        assert_eq!(machine.complaints(&plan()), [want]);
    }
}

#[test]
fn a_runtime_that_was_named_must_answer_and_otherwise_containerd_must_be_there_to_start() {
    let silent = || Fixture { runtime: Err("refused".to_owned()), ..Fixture::healthy() };
    assert_eq!(
        silent().complaints(&Plan::with_runtime(Some("unix:///run/x.sock"))),
        ["Failure runtime: no answer at unix:///run/x.sock: refused"]
    );
    assert_eq!(
        silent().without("/usr/bin/containerd").complaints(&plan()),
        [
            "Failure runtime: no answer at unix:///run/containerd/containerd.sock: refused; and there \
          is no containerd to start"
        ]
    );
}

#[test]
fn cgroup_v1_will_do_if_its_hierarchies_are_mounted_and_nothing_forbids_it() {
    let mounts = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                  cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                  cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                  cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n";
    let machine = Fixture::healthy()
        .without("/sys/fs/cgroup/cgroup.controllers")
        .file("/proc/mounts", mounts);
    assert_eq!(machine.complaints(&plan()), Vec::<String>::new());
    let mut strict = plan();
    strict.configuration.fail_cgroup_v1 = true;
    assert_eq!(
        machine.complaints(&strict),
        ["Failure cgroups: the configuration forbids cgroup v1, which this machine has"]
    );
}

#[test]
fn ports_are_those_of_the_configuration() {
    let machine = Fixture { busy: vec![10250, 10255, 4444], ..Fixture::healthy() };
    let mut plan = plan();
    plan.configuration.port = 4444;
    plan.configuration.healthz_port = 0;
    plan.configuration.read_only_port = 10255;
    assert_eq!(
        machine.complaints(&plan),
        [
            "Failure ports: 0.0.0.0:4444: address in use",
            "Failure ports: 0.0.0.0:10255: address in use",
        ]
    );
    plan.configuration.enable_server = false;
    assert_eq!(machine.complaints(&plan), Vec::<String>::new());
}

#[test]
fn disks_need_room_and_inodes() {
    for (space, want) in [
        (Space { bytes_free: 1 << 20, ..ROOMY }, "Failure disk: /var/lib/kubelet: only 1 MiB free"),
        (
            Space { bytes_free: 5 << 30, ..ROOMY },
            "Warning disk: /var/lib/kubelet: less than 10% of space free",
        ),
        (
            Space { inodes_free: 1, ..ROOMY },
            "Warning disk: /var/lib/kubelet: less than 10% of inodes free",
        ),
    ] {
        let machine = Fixture { space, ..Fixture::healthy() };
        assert_eq!(machine.complaints(&plan())[0], want);
    }
    let uncounted = Space { inodes: 0, inodes_free: 0, ..ROOMY };
    let machine = Fixture { space: uncounted, ..Fixture::healthy() };
    assert_eq!(machine.complaints(&plan()), Vec::<String>::new());
}

#[test]
fn the_kernels_own_list_of_options_is_read_compressed() {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    let machine = Fixture::healthy().without("/lib/modules").without("/sys/module");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(b"CONFIG_BRIDGE=y\nCONFIG_VETH=y\n").unwrap();
    fs::write(machine.path("/proc/config.gz"), packed.finish().unwrap()).unwrap();
    assert_eq!(machine.complaints(&plan()), Vec::<String>::new());
}

#[test]
fn an_empty_folder_is_a_machine_with_many_complaints_and_no_panic() {
    let machine = Fixture { root: tempfile::tempdir().unwrap(), ..Fixture::healthy() };
    let complaints = machine.complaints(&plan());
    assert!(complaints.len() > 10, "{complaints:#?}");
    assert!(!is_fit(&examine(&machine, &plan())));
}

#[test]
fn findings_are_printed_for_people_and_for_programs() {
    let findings = [
        Finding::ok("kernel", "Linux 6.1"),
        Finding::warning("swap", "on", "run `swapoff -a`"),
        Finding::failure("programs", "no runc", "install it"),
    ];
    let mut text = Vec::new();
    print_text(&findings, false, &mut text).unwrap();
    insta::assert_snapshot!(String::from_utf8(text).unwrap(), @r"
    ok    kernel    Linux 6.1
    warn  swap      on
                    fix: run `swapoff -a`
    FAIL  programs  no runc
                    fix: install it

    This machine cannot run pods yet; failures: 1.
    ");
    let mut json = Vec::new();
    print_json(&findings, &mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["ok"], false);
    assert_eq!(json["findings"][0]["verdict"], "ok");
    assert_eq!(json["findings"][2]["fix"], "install it");
}
