#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::net::IpAddr;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A machine as a directory of files.
fn machine(files: &[(&str, &str)]) -> (TempDir, Machine) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let machine = Machine::at(dir.path());
    (dir, machine)
}

const MEMINFO: &str = "MemTotal:       24682416 kB\nMemFree: 1 kB\nSwapTotal:      1024 kB\n";

#[test]
fn capacity_is_read_from_the_kernels_files() {
    let (_dir, machine) = machine(&[
        ("proc/meminfo", MEMINFO),
        ("sys/devices/system/cpu/online", "0-3,8\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
        ("sys/kernel/mm/hugepages/other/nr_hugepages", "7\n"),
    ]);
    assert_eq!(
        machine.capacity().unwrap(),
        Capacity {
            cpus: 5,
            cpu_list: "0-3,8".into(),
            memory: 24_682_416 << 10,
            swap: 1 << 20,
            hugepages: BTreeMap::from([(2 << 20, 16), (1 << 30, 0)]),
        }
    );
}

#[test]
fn missing_swap_and_huge_pages_are_no_error_missing_memory_and_cpus_are() {
    let online = ("sys/devices/system/cpu/online", "0\n");
    let (_dir, small) = machine(&[("proc/meminfo", "MemTotal: 1 kB\n"), online]);
    let capacity = small.capacity().unwrap();
    assert_eq!((capacity.cpus, capacity.swap, capacity.hugepages.len()), (1, 0, 0));
    for (files, named) in [
        (vec![online], "proc/meminfo"),
        (vec![("proc/meminfo", "MemTotal: lots\n"), online], "proc/meminfo does not say"),
        (vec![("proc/meminfo", MEMINFO)], "cpu/online"),
        (
            vec![("proc/meminfo", MEMINFO), ("sys/devices/system/cpu/online", "3-0\n")],
            "cpu/online does not say",
        ),
        (
            vec![("proc/meminfo", MEMINFO), ("sys/devices/system/cpu/online", "\n")],
            "cpu/online does not say",
        ),
    ] {
        let (_dir, machine) = machine(&files);
        let error = machine.capacity().unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

const IDS: [(&str, &str); 3] = [
    ("etc/machine-id", "0123abcd\n"),
    ("proc/sys/kernel/random/boot_id", "b-o-o-t\n"),
    ("proc/sys/kernel/osrelease", "6.1.0-1-amd64\n"),
];

#[test]
fn identity_falls_back_where_a_machine_lacks_something() {
    let (_dir, plain) = machine(&IDS);
    let identity = plain.identity().unwrap();
    assert_eq!(
        identity,
        Identity {
            machine_id: "0123abcd".into(),
            system_uuid: "0123abcd".into(),
            boot_id: "b-o-o-t".into(),
            kernel_version: "6.1.0-1-amd64".into(),
            os_image: "Linux".into(),
        }
    );
    let mut files = IDS.to_vec();
    files.push(("sys/class/dmi/id/product_uuid", "U-U\n"));
    let (_dir, firmware) = machine(&files);
    assert_eq!(firmware.identity().unwrap().system_uuid, "U-U");
    files.pop();
    files.push(("proc/device-tree/vm,uuid", "D-T\0"));
    let (_dir, device_tree) = machine(&files);
    assert_eq!(device_tree.identity().unwrap().system_uuid, "D-T");
    let (_dir, empty) =
        machine(&[("etc/machine-id", "\n"), ("var/lib/dbus/machine-id", "dbus\n"), IDS[1], IDS[2]]);
    assert_eq!(empty.identity().unwrap().machine_id, "dbus");
}

#[test]
fn the_os_image_is_the_pretty_name_without_its_quotes() {
    for (line, want) in [
        ("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"", "Debian GNU/Linux 12 (bookworm)"),
        ("PRETTY_NAME='Single'", "Single"),
        ("PRETTY_NAME=Bare", "Bare"),
        ("PRETTY_NAME=\"a \\\"b\\\" \\$c\"", "a \"b\" $c"),
        ("PRETTY_NAME=\"\"", "Linux"),
        ("NAME=x", "Linux"),
    ] {
        let mut files = IDS.to_vec();
        let text = format!("ID=x\n{line}\n");
        files.push(("usr/lib/os-release", &text));
        let (_dir, machine) = machine(&files);
        assert_eq!(machine.identity().unwrap().os_image, want, "{line}");
    }
}

#[test]
fn tasks_are_counted_against_both_limits() {
    let files = [
        ("proc/sys/kernel/pid_max", "32768\n"),
        ("proc/sys/kernel/threads-max", "192000\n"),
        ("proc/loadavg", "0.20 0.18 0.12 1/165 11206\n"),
    ];
    let (_dir, good) = machine(&files);
    assert_eq!(good.tasks().unwrap(), Tasks { pid_max: 32768, threads_max: 192_000, current: 165 });
    let (_dir, bad) = machine(&[files[0], files[1], ("proc/loadavg", "0.2 0.1 0.1 x\n")]);
    assert!(bad.tasks().unwrap_err().to_string().contains("loadavg"));
}

const ROUTES_V4: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
down\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
";
const ROUTES_V6: &str = "\
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn on(interface: &str, address: &str) -> InterfaceAddress {
    InterfaceAddress {
        interface: interface.into(),
        address: ip(address),
        up: true,
        loopback: interface == "lo",
        point_to_point: false,
    }
}

#[test]
fn default_routes_come_best_first() {
    if cfg!(target_endian = "big") {
        return; // the fixture is in the byte order of most machines
    }
    let routes = default_routes(ROUTES_V4, ROUTES_V6);
    let seen: Vec<_> = routes.iter().map(|r| (r.interface.as_str(), r.gateway, r.metric)).collect();
    assert_eq!(
        seen,
        [
            ("eth0", ip("192.0.2.1"), 100),
            ("eth1", ip("10.0.0.1"), 200),
            ("eth0", ip("fe80::1"), 1024)
        ]
    );
}

#[test]
fn the_nodes_addresses_are_those_of_the_default_routes_interfaces() {
    let routes = default_routes(ROUTES_V4, ROUTES_V6);
    let down = InterfaceAddress { up: false, ..on("eth0", "192.0.2.7") };
    let everything = [
        on("lo", "127.0.0.1"),
        on("docker0", "172.17.0.1"),
        on("eth0", "fe80::2"),
        on("eth0", "2001:db8::2"),
        down,
        on("eth0", "169.254.1.1"),
        on("eth0", "192.0.2.2"),
        on("eth1", "10.0.0.2"),
    ];
    for (case, routes, addresses, want) in [
        ("both families", &routes[..], &everything[..], vec!["192.0.2.2", "2001:db8::2"]),
        (
            "only the second route's interface has one",
            &routes[..],
            &everything[7..],
            vec!["10.0.0.2"],
        ),
        ("no route", &[], &everything[..], vec!["172.17.0.1"]),
        ("loopback only", &[], &everything[..1], vec![]),
        ("nothing", &routes[..], &[], vec![]),
    ] {
        let want: Vec<_> = want.into_iter().map(ip).collect();
        assert_eq!(node_addresses(routes, addresses), want, "{case}");
    }
}

#[test]
fn this_machine_can_be_read() {
    let this = Machine::at("/");
    let capacity = this.capacity().unwrap();
    assert!(capacity.cpus > 0 && capacity.memory > 1 << 20);
    assert!(this.tasks().unwrap().current > 0);
    this.default_routes().unwrap();
    assert!(interface_addresses().unwrap().iter().any(|address| address.loopback));
    assert!(!architecture().is_empty());
    let disk = disk(Path::new("/")).unwrap();
    assert!(disk.capacity > 0 && disk.used <= disk.capacity && disk.inodes_free <= disk.inodes);
    assert!(super::disk(Path::new("/no/such")).unwrap_err().to_string().contains("/no/such"));
}

proptest! {
    #[test]
    fn arbitrary_route_tables_do_not_panic(v4 in "\\PC{0,200}", v6 in "([0-9a-f ]{0,80}\n?){0,3}") {
        default_routes(&v4, &v6);
        count_cpus(&v4);
        unquote(&v4);
    }
}

#[test]
fn machine_without_global_address_on_its_links_is_reached_by_that_of_its_loopback() {
    let routes = default_routes(ROUTES_V4, ROUTES_V6);
    let addresses = [
        on("lo", "127.0.0.1"),
        on("lo", "198.51.100.7"),
        on("lo", "::1"),
        on("docker0", "172.17.0.1"),
        on("eth0", "fe80::2"),
        on("eth1", "fe80::3"),
    ];
    assert_eq!(node_addresses(&routes, &addresses), [ip("198.51.100.7")]);
}

#[test]
fn swap_in_use_is_what_is_not_free() {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine::at(root.path());
    machine.swap_in_use().unwrap_err();
    std::fs::create_dir(root.path().join("proc")).unwrap();
    for (text, want) in [
        ("MemTotal: 9 kB\n", 0),
        ("SwapTotal:      1024 kB\nSwapFree:        1000 kB\n", 24 << 10),
        ("SwapTotal:      1024 kB\n", 1 << 20),
        ("SwapTotal:      10 kB\nSwapFree:        1000 kB\n", 0),
        ("SwapTotal:      18446744073709551615 kB\nSwapFree: x\n", 0),
    ] {
        std::fs::write(root.path().join("proc/meminfo"), text).unwrap();
        assert_eq!(machine.swap_in_use().unwrap(), want, "{text}");
    }
}
