//! Files of the kernel, and tables of other programs.

use std::path::{Path, PathBuf};

use podwright::standalone::filter::Filter;
use podwright::standalone::network;
use podwright_core::cgroup::CgroupName;
use podwright_core::config::dns::HostDns;
use podwright_host::cgroup::{Cgroups, Owner};
use podwright_host::machine::{self, Machine};
use podwright_host::mounts;
use podwright_host::process::ProcessIdentity;
use podwright_host::self_usage;

pub(crate) fn mountinfo(bytes: &[u8]) {
    let table = mounts::parse(bytes);
    for mount in &table {
        let here = mounts::at_or_below(&table, &mount.point);
        assert!(here.iter().any(|found| found.id == mount.id), "{mount:?}");
        let _ = mounts::around(&table, &mount.point);
        let _ = (mount.is_read_only(), mount.super_option_list().count());
    }
    let points: Vec<PathBuf> = table.iter().map(|mount| mount.point.clone()).collect();
    let _ = mounts::check_own(&table, &points);
    let _ = podwright_host::cgroup::detect(&table, Path::new("/sys/fs/cgroup"));
}

pub(crate) fn mountinfo_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
23 22 0:21 / /proc rw,nosuid shared:2 - proc proc rw\n\
24 22 0:22 / /sys/fs/cgroup rw shared:3 master:4 propagate_from:5 - cgroup2 cgroup2 rw,nsdelegate\n\
25 22 0:23 /a\\040b /var/lib/kubelet/pods/u/volumes/x\\134y rw unbindable - tmpfs tmpfs rw,size=4k\n\
26 22 0:24 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
27 25 0:25 /a//deleted /var/lib/kubelet/pods/u/volumes/x\\134y/z ro - ext4 /dev/sdb ro\n",
        "\
22 24 0:1 / /p rw - proc proc rw\n\
24 22 0:2 / /p rw - proc proc rw\n",
    ])
}

/// A directory with the files of an input: `== path` begins each. Only paths of seeds are written.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(bytes: &[u8], known: fn() -> Vec<Vec<u8>>) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let tree = Self(directory.unwrap_or_else(|error| panic!("{error}")));
        for seed in known() {
            for (path, _) in crate::parts(&String::from_utf8_lossy(&seed)) {
                let content = content(bytes, path);
                if let Some(content) = content {
                    tree.write(path, content);
                }
            }
        }
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.path().join(path);
        let made = std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")));
        made.and_then(|()| std::fs::write(&path, content))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The part of the input with this name.
fn content<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let header = format!("== {name}\n");
    let begin = bytes.windows(header.len()).position(|window| window == header.as_bytes())?;
    let content = bytes.get(begin + header.len()..)?;
    let end = content.windows(4).position(|window| window == b"\n== ");
    content.get(..end.map_or(content.len(), |end| end + 1))
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap_or_else(|error| panic!("{error}")).block_on(work)
}

pub(crate) fn cgroup_files(bytes: &[u8]) {
    let tree = Tree::new(bytes, cgroup_seeds);
    let root = tree.path().display();
    let unified = format!("31 23 0:28 / {root} rw - cgroup2 cgroup2 rw\n");
    let split =
        ["cpu,cpuacct", "memory", "pids", "cpuset", "hugetlb", "name=systemd"].map(|name| {
            let path = name.rsplit('=').next().unwrap_or(name);
            format!("32 31 0:29 / {root}/{path} rw - cgroup cgroup rw,{name}\n")
        });
    let split = format!("31 23 0:28 / {root} rw - tmpfs tmpfs rw\n{}", split.concat());
    for table in [unified, split] {
        let table = mounts::parse(table.as_bytes());
        let opened = Cgroups::open(&table, tree.path(), Owner::Us, vec![2 << 20]);
        let Ok(cgroups) = opened else { continue };
        let Ok(name) = CgroupName::parse("/a") else { panic!("/a is a name") };
        wait(async {
            let _ = cgroups.usage(&name).await;
            let _ = cgroups.usage_at("a").await;
            let _ = cgroups.detail(&name, None).await;
            let _ = cgroups.settings(&name).await;
            let _ = cgroups.pids(&name).await;
            let _ = cgroups.children(&name).await;
        });
        let _ = (cgroups.missing_controllers(), cgroups.limits_swap());
    }
}

pub(crate) fn cgroup_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "\
== cgroup.controllers\ncpuset cpu io memory hugetlb pids rdma\n\
== a/cgroup.controllers\ncpu memory\n\
== a/cgroup.procs\n1\n22\n\
== a/cpu.stat\nusage_usec 12345\nuser_usec 1\nsystem_usec 2\nnr_periods 3\nnr_throttled 4\nthrottled_usec 5\n\
== a/cpu.max\n10000 100000\n\
== a/cpu.weight\n100\n\
== a/memory.max\nmax\n\
== a/memory.min\n0\n\
== a/memory.high\n1048576\n\
== a/memory.current\n4096\n\
== a/memory.peak\n8192\n\
== a/memory.swap.current\n0\n\
== a/memory.swap.max\nmax\n\
== a/memory.stat\nanon 1\nfile 2\ninactive_file 3\npgfault 4\npgmajfault 5\nfile_mapped 6\n\
== a/memory.events\nlow 0\noom 1\noom_kill 2\n\
== a/pids.max\n100\n\
== a/pids.current\n3\n\
== a/cpu.pressure\nsome avg10=0.00 avg60=1.50 avg300=99.99 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
== a/io.stat\n8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n\
== a/hugetlb.2MB.max\nmax\n\
== a/cpuset.cpus.effective\n0-3,7\n",
        "\
== cpu,cpuacct/a/cpuacct.usage\n123456789\n\
== cpu,cpuacct/a/cpu.shares\n1024\n\
== cpu,cpuacct/a/cpu.cfs_quota_us\n-1\n\
== cpu,cpuacct/a/cpu.cfs_period_us\n100000\n\
== cpu,cpuacct/a/cpu.stat\nnr_periods 1\nnr_throttled 2\nthrottled_time 3\n\
== memory/a/memory.usage_in_bytes\n4096\n\
== memory/a/memory.limit_in_bytes\n9223372036854771712\n\
== memory/a/memory.stat\ntotal_inactive_file 1\ntotal_rss 2\ntotal_pgfault 3\n\
== pids/a/pids.current\n2\n\
== pids/a/pids.max\nmax\n\
== cpuset/a/cpuset.cpus\n0-1\n\
== systemd/a/cgroup.procs\n1\n",
    ])
}

/// /proc, /sys and /etc, as the node status and the statistics read them.
pub(crate) fn kernel_files(bytes: &[u8]) {
    let tree = Tree::new(bytes, kernel_seeds);
    let machine = Machine::at(tree.path());
    let _ = machine.capacity();
    let _ = machine.identity();
    let _ = machine.tasks();
    let _ = machine.default_routes();
    let _ = machine.has_apparmor();
    let _ = (machine.interfaces(None), machine.interfaces(Some(1)));
    let _ = machine.boot_time();
    let _ = (machine.block_devices(), machine.filesystems());
    let _ = machine::hugepage_sizes(tree.path());
    let proc = tree.path().join("proc");
    let _ = self_usage::read(&proc);
    if let Ok(Some(identity)) = ProcessIdentity::of(&proc, 1) {
        assert!(identity.is_running(&proc).is_ok_and(|running| running), "{identity:?}");
    }
    let _ = machine::count_cpus(&String::from_utf8_lossy(bytes));
    if let HostDns::Read(read) = HostDns::parse(&String::from_utf8_lossy(bytes)) {
        assert!(read.servers.iter().all(|server| !server.is_empty()), "{read:?}");
    }
}

pub(crate) fn kernel_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&["\
== proc/meminfo\nMemTotal:       16384000 kB\nMemFree:         8192000 kB\nSwapTotal:             0 kB\n\
== proc/cpuinfo\nprocessor\t: 0\nmodel name\t: x\nphysical id\t: 0\ncore id\t\t: 0\nprocessor\t: 1\n\
== proc/stat\ncpu  1 2 3\nbtime 1700000000\nprocesses 100\n\
== proc/loadavg\n0.00 0.01 0.05 1/234 5678\n\
== proc/sys/kernel/pid_max\n4194304\n\
== proc/sys/kernel/threads-max\n127000\n\
== proc/sys/kernel/random/boot_id\n2f9c6b1e-7a3b-4b52-8c2b-000000000000\n\
== proc/sys/kernel/osrelease\n6.12.0\n\
== proc/net/route\nIface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
== proc/net/ipv6_route\n00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
fe800000000000000000000000000001 00000400 00000000 00000000 00000003     eth0\n\
== proc/net/dev\nInter-|   Receive\n face |bytes    packets\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
== proc/1/net/dev\nInter-|   Receive\n face |bytes    packets\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
== proc/1/stat\n1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1 1 18446744073709551615\n\
== proc/self/stat\n1 (a) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1 1 18446744073709551615\n\
== proc/self/statm\n100 20 3 1 0 50 0\n\
== proc/self/status\nName:\ta\nVmRSS:\t  100 kB\nThreads:\t3\n\
== proc/self/limits\nMax open files            1024                 4096                 files     \n\
== proc/self/mountinfo\n22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
== proc/diskstats\n   8       0 sda 1 2 3 4 5 6 7 8 9 10 11\n\
== sys/devices/system/cpu/online\n0-3,7\n\
== sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages\n4\n\
== sys/class/dmi/id/product_uuid\nabc\n\
== sys/module/apparmor/parameters/enabled\nY\n\
== sys/block/sda/size\n100\n\
== etc/machine-id\n0123456789abcdef0123456789abcdef\n\
== etc/os-release\nNAME=\"x\"\nPRETTY_NAME='Debian \\\"13\\\"'\nID=debian\n\
== etc/resolv.conf\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nsearch a.b. c\noptions ndots:5 timeout:1\n"])
}

/// Routes and packet filter rules, which other programs write.
pub(crate) fn network_tables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = network::parse_routes(&text);
    let filter = Filter::parse(&text);
    let _ = filter.shared_chains();
    let _ = text.parse::<network::Subnet>().map(network::Subnet::gateway);
}

pub(crate) fn network_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "*nat\n:PREROUTING ACCEPT [0:0]\n:CNI-1111 - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n\
         -A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"pw-1\\\" id: \\\"aa\\\"\" -j CNI-1111\n\
         -A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 80 -j CNI-1111\nCOMMIT\n",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\teth0\n\
         eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00FFFFFF\t0\t0\t0\n",
        "10.213.0.0/16",
    ])
}
