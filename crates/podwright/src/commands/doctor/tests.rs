//! Tests of the checks, on directories that stand in for machines.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A directory that stands in for a machine.
struct Fixture {
    root: TempDir,
    busy: Vec<u16>,
    space: Space,
    runtime: Result<RuntimeReport, String>,
}

const AMPLE: Space =
    Space { bytes: 100 << 30, bytes_free: 50 << 30, inodes: 1000, inodes_free: 900 };

impl Fixture {
    /// A machine that passes all checks, with cgroup v2.
    fn healthy() -> Self {
        let fixture = Self {
            root: tempfile::tempdir().unwrap(),
            busy: Vec::new(),
            space: AMPLE,
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

    /// Warnings and failures, one line each.
    fn problems(&self, plan: &Plan) -> Vec<String> {
        let findings = examine(self, plan);
        for finding in &findings {
            assert_eq!(finding.fix.is_some(), finding.verdict != Verdict::Ok, "{finding:?}");
        }
        findings
            .into_iter()
            .filter(|finding| finding.verdict != Verdict::Ok)
            .map(|finding| format!("{:?} {}: {}", finding.verdict, finding.check, finding.message))
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
        assert!(path.exists(), "directory does not exist: {}", path.display());
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
fn healthy_machine_has_no_problems() {
    let machine = Fixture::healthy();
    assert_eq!(machine.problems(&plan()), Vec::<String>::new());
    assert!(can_run_pods(&examine(&machine, &plan())));
}

#[test]
fn each_defect_is_reported_as_one_problem() {
    let defects: [(Fixture, &str); 22] = [
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
            "Failure privileges: cannot read user and capabilities from /proc/self/status",
        ),
        (
            Fixture::healthy()
                .file("/proc/sys/kernel/osrelease", "5.4.0\n")
                .file("/sys/module/veth/refcnt", ""),
            "Failure kernel: Linux 5.4.0 is too old",
        ),
        (
            Fixture::healthy().file("/proc/filesystems", "nodev\tproc\n"),
            "Warning kernel: cannot find overlay, needed for container file systems",
        ),
        (
            Fixture::healthy()
                .without("/lib/modules")
                .file("/boot/config-6.1.0-18-amd64", "# CONFIG_VETH is not set\n"),
            "Failure kernel: veth is missing, needed for the pod network",
        ),
        (
            Fixture::healthy()
                .without("/lib/modules")
                .file("/boot/config-6.1.0-18-amd64", "CONFIG_VETH=m\n"),
            "Warning kernel: cannot find veth, needed for the pod network",
        ),
        (
            Fixture::healthy().file("/sys/fs/cgroup/cgroup.controllers", "cpu cpuset\n"),
            "Failure cgroups: cgroup v2 without memory, pids",
        ),
        (
            Fixture::healthy().without("/sys/fs/cgroup/cgroup.controllers"),
            "Failure cgroups: no cgroup v2, and no cgroup v1 hierarchy for cpu, cpuacct, cpuset, memory, pids",
        ),
        (Fixture::healthy().without("/usr/sbin/iptables"), "Failure programs: iptables not found"),
        (
            Fixture::healthy().without("/usr/sbin/runc"),
            "Failure programs: no OCI runtime found (runc, crun, youki)",
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
            "Warning runtime: no response at unix:///run/containerd/containerd.sock: connection refused",
        ),
        (
            Fixture::healthy().without("/etc/cni/net.d/10-pods.conflist"),
            "Warning network: no CNI configuration in /etc/cni/net.d",
        ),
        (
            Fixture::healthy().file("/proc/sys/net/ipv4/ip_forward", "0\n"),
            "Warning network: IPv4 forwarding is disabled; pods cannot reach anything outside this machine",
        ),
        (
            Fixture { busy: vec![10248, 10255], ..Fixture::healthy() },
            "Failure ports: 127.0.0.1:10248: address in use",
        ),
        (
            Fixture::healthy().file("/proc/swaps", "Filename\n/dev/sda2 partition\n"),
            "Warning swap: on: /dev/sda2; `podwright kubelet` refuses to start, `podwright up` works",
        ),
        (
            Fixture {
                runtime: Fixture::healthy().runtime.map(|report| RuntimeReport {
                    images: vec!["docker.io/library/pausebox:1".to_owned()],
                    ..report
                }),
                ..Fixture::healthy()
            },
            "Warning runtime: no sandbox (pause) image yet; the runtime pulls its configured image for the first pod",
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
    for (machine, want) in defects {
        assert_eq!(machine.problems(&plan()), [want]);
    }
}

#[test]
fn given_runtime_must_respond_and_otherwise_containerd_must_be_installed() {
    let unresponsive = || Fixture { runtime: Err("refused".to_owned()), ..Fixture::healthy() };
    assert_eq!(
        unresponsive().problems(&Plan::with_runtime(Some("unix:///run/x.sock"))),
        ["Failure runtime: no response at unix:///run/x.sock: refused"]
    );
    assert_eq!(
        unresponsive().without("/usr/bin/containerd").problems(&plan()),
        ["Failure runtime: no response at unix:///run/containerd/containerd.sock: refused; \
          containerd is not installed"]
    );
}

#[test]
fn cgroup_v1_is_accepted_if_mounted_and_not_forbidden() {
    let mounts = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                  cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                  cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                  cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n";
    let machine = Fixture::healthy()
        .without("/sys/fs/cgroup/cgroup.controllers")
        .file("/proc/mounts", mounts);
    assert_eq!(machine.problems(&plan()), Vec::<String>::new());
    let mut strict = plan();
    strict.configuration.fail_cgroup_v1 = true;
    assert_eq!(
        machine.problems(&strict),
        ["Failure cgroups: the configuration forbids cgroup v1, which this machine uses"]
    );
}

#[test]
fn checked_ports_are_those_of_the_configuration() {
    let machine = Fixture { busy: vec![10250, 10255, 4444], ..Fixture::healthy() };
    let mut plan = plan();
    plan.configuration.port = 4444;
    plan.configuration.healthz_port = 0;
    plan.configuration.read_only_port = 10255;
    assert_eq!(
        machine.problems(&plan),
        [
            "Failure ports: 0.0.0.0:4444: address in use",
            "Failure ports: 0.0.0.0:10255: address in use",
        ]
    );
    plan.configuration.enable_server = false;
    assert_eq!(machine.problems(&plan), Vec::<String>::new());
}

#[test]
fn disks_need_free_space_and_inodes() {
    for (space, want) in [
        (Space { bytes_free: 1 << 20, ..AMPLE }, "Failure disk: /var/lib/kubelet: only 1 MiB free"),
        (
            Space { bytes_free: 5 << 30, ..AMPLE },
            "Warning disk: /var/lib/kubelet: less than 10% of space free",
        ),
        (
            Space { inodes_free: 1, ..AMPLE },
            "Warning disk: /var/lib/kubelet: less than 10% of inodes free",
        ),
    ] {
        let machine = Fixture { space, ..Fixture::healthy() };
        assert_eq!(machine.problems(&plan())[0], want);
    }
    let uncounted = Space { inodes: 0, inodes_free: 0, ..AMPLE };
    let machine = Fixture { space: uncounted, ..Fixture::healthy() };
    assert_eq!(machine.problems(&plan()), Vec::<String>::new());
}

#[test]
fn kernel_options_are_read_from_compressed_proc_config() {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    let machine = Fixture::healthy().without("/lib/modules").without("/sys/module");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(b"CONFIG_BRIDGE=y\nCONFIG_VETH=y\n").unwrap();
    fs::write(machine.path("/proc/config.gz"), packed.finish().unwrap()).unwrap();
    assert_eq!(machine.problems(&plan()), Vec::<String>::new());
}

#[test]
fn empty_directory_has_many_problems_and_causes_no_panic() {
    let machine = Fixture { root: tempfile::tempdir().unwrap(), ..Fixture::healthy() };
    let problems = machine.problems(&plan());
    assert!(problems.len() > 10, "{problems:#?}");
    assert!(!can_run_pods(&examine(&machine, &plan())));
}

#[test]
fn findings_are_printed_as_text_and_json() {
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

#[test]
fn graceful_shutdown_needs_the_login_manager_if_it_is_configured() {
    let mut plan = Plan::with_runtime(Some("unix:///run/containerd/containerd.sock"));
    let machine = Fixture::healthy();
    let about = |machine: &Fixture, plan: &Plan| {
        let problems = machine.problems(plan).into_iter();
        problems.filter(|problem| problem.contains("shutdown")).collect::<Vec<_>>()
    };
    assert_eq!(about(&machine, &plan), [""; 0]);
    plan.configuration.shutdown_grace_period = config::duration::GoDuration::from_secs(30);
    let end = "pods are not ended before this machine shuts down";
    assert_eq!(
        about(&machine, &plan),
        [format!("Warning shutdown: there is no D-Bus system bus: {end}")]
    );
    let machine = machine.file("/run/dbus/system_bus_socket", "");
    assert_eq!(
        about(&machine, &plan),
        [format!("Warning shutdown: systemd-logind does not run: {end}")]
    );
    let machine = machine.file("/run/systemd/seats/seat0", "");
    assert_eq!(about(&machine, &plan), [""; 0]);
}
