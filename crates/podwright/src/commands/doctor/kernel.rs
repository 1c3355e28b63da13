//! Checks of the kernel: version and features.

use std::io::Read;

use flate2::read::GzDecoder;

use super::{Finding, Machine};

const CHECK: &str = "kernel";

/// The first kernel with `openat2`, which confines file access to a pod's directories.
const OLDEST: (u32, u32) = (5, 6);

/// Features: build option, module and purpose.
const FEATURES: [(&str, &str, &str); 3] = [
    ("OVERLAY_FS", "overlay", "container file systems"),
    ("BRIDGE", "bridge", "the pod network"),
    ("VETH", "veth", "the pod network"),
];

pub(super) fn examine(machine: &dyn Machine) -> Vec<Finding> {
    let release = machine.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut findings = vec![version(release)];
    let options = build_options(machine, release);
    findings.extend(FEATURES.iter().map(|(option, module, purpose)| {
        feature(machine, release, options.as_deref(), (option, module, purpose))
    }));
    findings
}

fn version(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>());
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::failure(
            CHECK,
            "cannot read the kernel version from /proc/sys/kernel/osrelease",
            "mount /proc",
        );
    };
    if (major, minor) < OLDEST {
        let (major, minor) = OLDEST;
        return Finding::failure(
            CHECK,
            format!("Linux {release} is too old"),
            format!("boot Linux {major}.{minor} or later"),
        );
    }
    Finding::ok(CHECK, format!("Linux {release}"))
}

/// Checks a feature by build options, loaded modules and module lists.
fn feature(
    machine: &dyn Machine,
    release: &str,
    options: Option<&str>,
    (option, module, purpose): (&str, &str, &str),
) -> Finding {
    let enabled = |value: char| {
        let line = format!("CONFIG_{option}={value}");
        options.is_some_and(|options| options.lines().any(|found| found == line))
    };
    let built_in = enabled('y') || lists_module(machine, release, "modules.builtin", module);
    let loaded = machine.exists(format!("/sys/module/{module}")) || is_file_system(machine, module);
    if built_in || loaded {
        return Finding::ok(CHECK, format!("{module} is available"));
    }
    if lists_module(machine, release, "modules.dep", module) {
        return Finding::ok(CHECK, format!("{module} is a module, loaded on demand"));
    }
    let fix = format!("load it with `modprobe {module}`, or boot a kernel with CONFIG_{option}");
    if options.is_some() && !enabled('m') {
        return Finding::failure(CHECK, format!("{module} is missing, needed for {purpose}"), fix);
    }
    Finding::warning(CHECK, format!("cannot find {module}, needed for {purpose}"), fix)
}

fn is_file_system(machine: &dyn Machine, name: &str) -> bool {
    let listed = machine.read("/proc/filesystems").unwrap_or_default();
    listed.lines().any(|line| line.split_whitespace().last() == Some(name))
}

/// Whether a module list contains a module.
fn lists_module(machine: &dyn Machine, release: &str, list: &str, module: &str) -> bool {
    let list = machine.read(format!("/lib/modules/{release}/{list}")).unwrap_or_default();
    let file = format!("/{module}.ko");
    list.lines().any(|line| {
        let path = line.split(':').next().unwrap_or(line);
        path.contains(&file)
    })
}

/// The build options of the kernel, from /proc or /boot.
fn build_options(machine: &dyn Machine, release: &str) -> Option<String> {
    if let Ok(packed) = std::fs::File::open(machine.at("/proc/config.gz")) {
        let mut text = String::new();
        if GzDecoder::new(packed).read_to_string(&mut text).is_ok() {
            return Some(text);
        }
    }
    machine.read(format!("/boot/config-{release}"))
}
