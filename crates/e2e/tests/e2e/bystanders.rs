//! Machine snapshot and bystanders detect damage: the tests cause it themselves.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use podwright_e2e::bed::Bed;
use podwright_e2e::machine::{Kind, MachineSnapshot, Scope};
use rustix::process::{Pid, Signal, kill_process};

use crate::privilege::{isolated, needs_root};

fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

/// A user's objects, of every kind that a snapshot covers.
const USERS_OWN: &str = "
mkdir /run/user /run/user/disk /run/user/other
mount -t tmpfs user /run/user/disk
mount --make-shared /run/user/disk
mkdir /run/user/disk/inner
mount -t tmpfs inner /run/user/disk/inner
mount -t tmpfs other /run/user/other
mount --make-private /run/user/other
echo notes >/run/user/notes
echo notes >/run/user/replaced
ln -s notes /run/user/link
ip link add user0 type veth peer name user1
ip link add user-bridge type bridge
ip address add 192.0.2.7/24 dev user0
ip link set user0 up
ip link set user1 up
ip route add 198.51.100.0/24 dev user0
iptables -t nat -N USER
iptables -t nat -A USER -j RETURN
ip6tables -N USER6
nft add table inet user_table
nft add chain inet user_table user_chain
nft add rule inet user_table user_chain tcp dport 77 accept
";

/// Damage, and the kind and name that must be reported for it.
const DAMAGE: [(&str, Kind, &str); 26] = [
    (
        "umount /run/user/disk/inner && mount -t tmpfs inner /run/user/disk/inner",
        Kind::Mount,
        "/run/user/disk/inner",
    ),
    ("umount /run/user/disk/inner", Kind::Mount, "/run/user/disk/inner"),
    ("mount --make-private /run/user/disk", Kind::Mount, "/run/user/disk"),
    ("mount --make-shared /run/user/other", Kind::Mount, "/run/user/other"),
    ("mount -o remount,ro /run/user/other", Kind::Mount, "/run/user/other"),
    ("mount -t tmpfs over /run/user/other", Kind::Mount, "/run/user/other (2)"),
    ("rm /run/user/notes", Kind::File, "/run/user/notes"),
    ("echo other >/run/user/replaced", Kind::File, "/run/user/replaced"),
    (
        "cp -p /run/user/replaced /run/user/copy; mv /run/user/copy /run/user/replaced",
        Kind::File,
        "/run/user/replaced",
    ),
    ("touch /tmp/left", Kind::File, "/tmp/left"),
    ("touch /var/tmp/left", Kind::File, "/var/tmp/left"),
    ("touch /dev/shm/left", Kind::File, "/dev/shm/left"),
    ("ip rule add from 192.0.2.0/24 table 77", Kind::Rule, "192.0.2.0"),
    ("ip -6 rule del priority 32766", Kind::Rule, "ip -6 priority 32766"),
    ("chmod 600 /run/user/replaced", Kind::File, "/run/user/replaced"),
    ("chown 7:7 /run/user/replaced", Kind::File, "owner 7:7"),
    ("ln -sf elsewhere /run/user/link", Kind::File, "/run/user/link"),
    ("ip address delete 192.0.2.7/24 dev user0", Kind::Link, "user0"),
    ("ip link set user1 master user-bridge", Kind::Link, "user1"),
    ("ip route add 203.0.113.0/24 dev user0", Kind::Route, "203.0.113.0/24"),
    ("iptables -t nat -F USER", Kind::Rule, "iptables-save nat -A USER -j RETURN"),
    ("iptables -P FORWARD DROP", Kind::Rule, "iptables-save filter chain FORWARD"),
    ("ip6tables -X USER6", Kind::Rule, "ip6tables-save filter chain USER6"),
    ("nft flush chain inet user_table user_chain", Kind::Rule, "tcp dport 77 accept"),
    ("echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet", Kind::Sysctl, "all/route_localnet"),
    ("ip link delete user0", Kind::Link, "user0"),
];

#[test]
fn snapshot_reports_each_kind_of_damage() {
    needs_root!();
    isolated!();
    shell(USERS_OWN);
    let take = || MachineSnapshot::take(&Scope::new()).unwrap();
    let names = ["pw-meta"];
    let mut before = take();
    for (damage, kind, text) in DAMAGE {
        shell(damage);
        let after = take();
        let difference = before.difference(&after).without_cgroups_of_others(&names);
        assert!(difference.names(kind, text), "{damage}: no {kind} {text} in\n{difference}");
        before = after;
    }

    // a process starts and exits
    let mut process = Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn().unwrap();
    let started = take();
    assert!(before.difference(&started).names(Kind::Process, "sleep infinity"));
    process.kill().unwrap();
    process.wait().unwrap();
    let killed = started.difference(&take());
    assert!(
        killed.names(Kind::Process, "sleep infinity") && !killed.removed.is_empty(),
        "{killed}"
    );

    // a listening socket and its file
    let listening = UnixListener::bind("/run/user/socket").unwrap();
    let before = take();
    drop(listening);
    let closed = before.difference(&take());
    assert!(closed.names(Kind::UnixSocket, "/run/user/socket"), "{closed}");

    // a cgroup and its limits; cgroups are shared with the machine, so this one is removed again
    let cgroup = UserCgroup::make();
    let before = take();
    cgroup.limit();
    let limited = before.difference(&take());
    let name = cgroup.0.display().to_string();
    assert!(limited.names(Kind::Cgroup, &name) && !limited.changed.is_empty(), "{limited}");
    drop(cgroup);
    let removed = before.difference(&take());
    assert!(removed.names(Kind::Cgroup, &name), "{removed}");

    // and nothing, if nothing was done
    let before = take();
    assert_eq!(before.difference(&take()).without_cgroups_of_others(&names).to_string(), "");
}

/// A cgroup with a limit, on either cgroup version.
struct UserCgroup(PathBuf);

impl UserCgroup {
    fn make() -> Self {
        let name = format!("pw-meta-{}", std::process::id());
        let pids = Path::new("/sys/fs/cgroup/pids");
        let top = if pids.is_dir() { pids } else { Path::new("/sys/fs/cgroup") };
        let path = top.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn limit(&self) {
        fs::write(self.0.join("pids.max"), "77").unwrap();
    }
}

impl Drop for UserCgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

/// The processes that run a program.
fn running(program: &Path) -> Vec<Pid> {
    let program = program.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours = processes.filter(|proc| {
        fs::read(proc.path().join("cmdline")).is_ok_and(|line| line.starts_with(program))
    });
    ours.filter_map(|proc| Pid::from_raw(proc.file_name().to_str()?.parse().ok()?)).collect()
}

#[tokio::test]
async fn bystanders_report_each_kind_of_damage_and_closing_the_bed_fails() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let bystanders = bed.bystanders().unwrap();
    assert_eq!(bystanders.damage(), Vec::<String>::new());
    drop(agent);

    let path = |below: &str| bed.path(below).display().to_string();
    let root = "agents/node-1/root";
    let mut known = 0;
    for (damage, reported) in [
        (
            format!("umount {}", path("user-disk/inner")),
            "user-disk/inner: a user's file system was",
        ),
        (format!("mount --make-private {}", path("user-disk")), "was made private"),
        (
            format!("mount -t tmpfs over {}", path(&format!("{root}/user-disk/inner"))),
            "was mounted over a user's file system",
        ),
        (
            format!("umount -l {}", path(&format!("{root}/pods/user-disk"))),
            "pods/user-disk: a user's",
        ),
        (format!("rm {}", path(&format!("{root}/user-notes.txt"))), "a user's file is gone"),
        (format!("echo x >{}", path("cni/user-notes.txt")), "the content of a user's file"),
        (
            format!("chmod 644 {}", path("user-notes.txt")),
            "mode of a user's file was changed to 644",
        ),
        (
            format!("chown 7 {}", path("agents/node-1/pod-logs/user-notes.log")),
            "the owner of a user's file was changed",
        ),
        (
            format!("cd {}; cp user-notes.txt n; mv n user-notes.txt", path("cni-data")),
            "a user's file was replaced",
        ),
    ] {
        shell(&damage);
        let now = bystanders.damage();
        assert!(now.len() > known, "{damage}: {now:#?}");
        assert!(
            now.iter().any(|line| line.contains(reported)),
            "{damage}: no {reported:?} in {now:#?}"
        );
        known = now.len();
    }
    for (damage, reported) in [
        (&["iptables", "-t", "nat", "-F", "USER-NAT"][..], "iptables -A USER-NAT"),
        (&["ip6tables", "-D", "FORWARD", "1"], "ip6tables -A FORWARD"),
        (&["nft", "delete", "table", "inet", "user_table"], "user_table"),
        (&["ip", "address", "flush", "dev", "user0"], "192.0.2.77"),
        (&["ip", "link", "delete", "user0"], "link"),
    ] {
        bed.exec(damage).await.unwrap();
        let now = bystanders.damage();
        assert!(now.len() > known, "{damage:?}: {now:#?}");
        assert!(
            now.iter().any(|line| line.contains(reported)),
            "{damage:?}: no {reported:?} in {now:#?}"
        );
        known = now.len();
    }
    let processes = running(&bed.path("user-database"));
    assert_eq!(processes.len(), 2, "one beside the node's cgroup, one inside");
    for process in processes {
        kill_process(process, Signal::KILL).unwrap();
    }
    let dead = async || {
        let damage = bystanders.damage();
        Ok(damage.iter().filter(|line| line.ends_with("was killed")).count() == 2)
    };
    let limit = std::time::Duration::from_secs(30);
    podwright_e2e::wait::until_true("the processes to be reported", limit, dead).await.unwrap();

    let directory = bed.path("");
    let refused = format!("{:#}", bed.close().unwrap_err());
    assert!(refused.starts_with("the node changed objects that are not its own"), "{refused}");
    assert!(!directory.exists(), "the bed is removed nevertheless");
}

#[tokio::test]
async fn bed_dropped_without_close_fails_its_case() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let directory = bed.path("");
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(bed)));
    let output = dropped.unwrap_err();
    let output = output.downcast_ref::<String>().unwrap();
    assert!(output.contains("was dropped without being closed"), "{output}");
    assert!(!directory.exists(), "the bed is removed nevertheless");
}
