use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command as StdCommand};

use podwright_testkit::needs_root;

use super::*;

/// A network namespace, and a directory of programs that enter it.
struct Namespace {
    /// Keeps the namespace alive.
    process: Child,
    programs: tempfile::TempDir,
}

impl Namespace {
    fn new() -> Self {
        let process = StdCommand::new("unshare").args(["--net", "sleep", "300"]).spawn().unwrap();
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = PathBuf::from(format!("/proc/{}/ns/net", process.id()));
        let entered = || fs::read_link(&theirs).is_ok_and(|link| link != own);
        assert!((0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            entered()
        }));
        let programs = tempfile::tempdir().unwrap();
        for family in Family::ALL {
            let name = family.program();
            let real =
                trusted_path::PROGRAM_DIRECTORIES.iter().map(|dir| Path::new(dir).join(name));
            let real = real.into_iter().find(|path| path.is_file()).unwrap();
            let (theirs, real) = (theirs.display(), real.display());
            let script = format!("#!/bin/sh\nexec nsenter --net={theirs} {real} \"$@\"\n");
            let path = programs.path().join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { process, programs }
    }

    fn directories(&self) -> Vec<PathBuf> {
        vec![self.programs.path().to_owned()]
    }

    fn run(&self, program: &str, arguments: &str) -> String {
        let path = self.programs.path().join(program);
        let output = StdCommand::new(path).args(arguments.split(' ')).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn rules(&self, program: &str, table: &str) -> Vec<String> {
        self.run(program, &format!("-t {table} -S")).lines().map(str::to_owned).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const CANARY: &str = "-N KUBE-KUBELET-CANARY";
const HINT: &str = "-N KUBE-IPTABLES-HINT";

#[tokio::test]
async fn chains_are_created_again_after_a_flush_beside_the_rules_of_the_user() {
    needs_root!();
    let namespace = Namespace::new();
    let user = "INPUT -s 192.0.2.0/24 -j DROP";
    namespace.run("iptables", &format!("-t filter -A {user}"));
    namespace.run("iptables", "-t mangle -N USER-CHAIN");
    let filters = PacketFilter::find(&namespace.directories());
    assert_eq!(filters.len(), 2);
    for filter in &filters {
        assert!(filter.ensure(&joined_node(filter.family)).await.unwrap());
        assert!(!filter.ensure(&joined_node(filter.family)).await.unwrap(), "nothing is missing");
    }
    let wanted = [
        "-P INPUT ACCEPT",
        "-P FORWARD ACCEPT",
        "-P OUTPUT ACCEPT",
        "-N KUBE-FIREWALL",
        CANARY,
        "-A INPUT -j KUBE-FIREWALL",
        &format!("-A {user}"),
        "-A OUTPUT -j KUBE-FIREWALL",
        "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming \
         localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    ];
    assert_eq!(namespace.rules("iptables", "filter"), wanted);
    let mangle = namespace.rules("iptables", "mangle");
    for chain in [HINT, CANARY, "-N USER-CHAIN"] {
        assert!(mangle.iter().any(|line| line == chain), "{chain} in {mangle:?}");
    }
    assert!(namespace.rules("iptables", "nat").iter().any(|line| line == CANARY));
    let six = namespace.rules("ip6tables", "mangle");
    assert!(six.iter().any(|line| line == HINT) && six.iter().any(|line| line == CANARY));
    let six = namespace.rules("ip6tables", "filter");
    assert!(!six.iter().any(|line| line.contains("KUBE-FIREWALL")), "{six:?}");

    // A reload flushes one table; the user's rules come back with it.
    namespace.run("iptables", "-t filter -F");
    namespace.run("iptables", "-t filter -X");
    namespace.run("iptables", &format!("-t filter -A {user}"));
    for filter in &filters {
        assert_eq!(
            filter.ensure(&joined_node(filter.family)).await.unwrap(),
            filter.family == Family::V4
        );
    }
    assert_eq!(namespace.rules("iptables", "filter"), wanted, "each rule exists once");
    assert_eq!(namespace.rules("iptables", "mangle"), mangle);
}

#[tokio::test]
async fn task_creates_the_chains_and_leaves_them_when_it_stops() {
    needs_root!();
    let namespace = Namespace::new();
    let stop = CancellationToken::new();
    let task = tokio::spawn(maintain(namespace.directories(), stop.clone()));
    let is_complete = || {
        ["iptables", "ip6tables"]
            .iter()
            .all(|program| namespace.rules(program, "filter").iter().any(|line| line == CANARY))
    };
    let began = tokio::time::Instant::now();
    while !is_complete() {
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    task.await.unwrap();
    assert!(is_complete());
}

#[tokio::test]
async fn without_a_program_the_task_ends() {
    let empty = tempfile::tempdir().unwrap();
    maintain(vec![empty.path().to_owned()], CancellationToken::new()).await;
}

#[tokio::test]
async fn unexpected_exit_code_is_an_error_and_not_an_absent_chain() {
    let programs = tempfile::tempdir().unwrap();
    let path = programs.path().join("iptables");
    fs::write(&path, "#!/bin/sh\necho 'no kernel support' >&2\nexit 3\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let filters = PacketFilter::find(&[programs.path().to_owned()]);
    assert_eq!(filters.len(), 1);
    for filter in filters {
        let error = filter.ensure(&joined_node(filter.family)).await.unwrap_err().to_string();
        assert!(error.ends_with("-t mangle -S KUBE-KUBELET-CANARY: no kernel support"), "{error}");
    }
}
