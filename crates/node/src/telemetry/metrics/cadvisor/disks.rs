//! Disk metrics: I/O of each cgroup per device, and the file systems of the machine.
//!
//! Nothing here walks a directory: the kernel counts I/O, the file system reports its usage, and the
//! runtime the size of writable layers.

use std::collections::BTreeMap;

use podwright_host::cgroup::{Access, Accesses};
use podwright_host::machine::{BlockDevice, Filesystem};

use super::super::exposition::{Exposition, MetricKind, Sample};
use super::{Row, cadvisor_family};

/// The disks of the machine.
#[derive(Default)]
pub struct Disks {
    filesystems: Vec<Filesystem>,
    devices: BTreeMap<(u32, u32), Device>,
    /// The device of the writable layers.
    layers: Option<(u32, u32)>,
}

/// A device with its labels.
struct Device {
    path: String,
    major: String,
    minor: String,
}

impl Device {
    fn new((major, minor): (u32, u32), path: String) -> Self {
        Self { path, major: major.to_string(), minor: minor.to_string() }
    }
}

impl Disks {
    /// `layers`: the device of the writable layers.
    pub fn new(
        filesystems: Vec<Filesystem>,
        devices: Vec<BlockDevice>,
        layers: Option<(u32, u32)>,
        rows: &[Row<'_>],
    ) -> Self {
        let device = |device: BlockDevice| {
            (device.number, Device::new(device.number, format!("/dev/{}", device.name)))
        };
        let mut devices: BTreeMap<_, _> = devices.into_iter().map(device).collect();
        let accessed = rows.iter().flat_map(|row| &row.detail.io.bytes).map(|a| a.device);
        for number in accessed.chain(layers) {
            // A device that the kernel does not list is named by its number.
            let unnamed = || Device::new(number, format!("{}:{}", number.0, number.1));
            devices.entry(number).or_insert_with(unnamed);
        }
        Self { filesystems, devices, layers }
    }

    fn path(&self, number: (u32, u32)) -> Option<&str> {
        self.devices.get(&number).map(|device| device.path.as_str())
    }
}

/// A family with a value for each file system of the machine.
struct FilesystemFamily {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    read: fn(&Filesystem) -> f64,
    /// Values for the other cgroups, per device or for the writable layer.
    cgroup_value: CgroupValue,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CgroupValue {
    Nothing,
    /// The size of a container's writable layer, from the runtime.
    Layer,
    Operations(Access),
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    read: fn(&Filesystem) -> f64,
) -> FilesystemFamily {
    FilesystemFamily {
        name,
        kind: MetricKind::Gauge,
        help,
        read,
        cgroup_value: CgroupValue::Nothing,
    }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&Filesystem) -> f64,
) -> FilesystemFamily {
    FilesystemFamily {
        name,
        kind: MetricKind::Counter,
        help,
        read,
        cgroup_value: CgroupValue::Nothing,
    }
}

const FILESYSTEMS: &[FilesystemFamily] = &[
    gauge("container_fs_inodes_free", "Number of available Inodes", |fs| {
        fs.disk.inodes_free as f64
    }),
    gauge("container_fs_inodes_total", "Number of Inodes", |fs| fs.disk.inodes as f64),
    gauge("container_fs_io_current", "Number of I/Os currently in progress", |fs| {
        fs.activity.in_progress as f64
    }),
    counter(
        "container_fs_io_time_seconds_total",
        "Cumulative count of seconds spent doing I/Os",
        |fs| seconds(fs.activity.io_millis),
    ),
    counter(
        "container_fs_io_time_weighted_seconds_total",
        "Cumulative weighted I/O time in seconds",
        |fs| seconds(fs.activity.weighted_io_millis),
    ),
    gauge("container_fs_limit_bytes", "Number of bytes that can be consumed", |fs| {
        fs.disk.capacity as f64
    }),
    counter("container_fs_read_seconds_total", "Time spent reading", |fs| {
        seconds(fs.activity.read_millis)
    }),
    counter("container_fs_reads_merged_total", "Cumulative count of reads merged", |fs| {
        fs.activity.reads_merged as f64
    }),
    FilesystemFamily {
        cgroup_value: CgroupValue::Operations(Access::Read),
        ..counter("container_fs_reads_total", "Reads", |fs| fs.activity.reads as f64)
    },
    counter("container_fs_sector_reads_total", "Sectors read", |fs| {
        fs.activity.sectors_read as f64
    }),
    counter("container_fs_sector_writes_total", "Sectors written", |fs| {
        fs.activity.sectors_written as f64
    }),
    FilesystemFamily {
        cgroup_value: CgroupValue::Layer,
        ..gauge("container_fs_usage_bytes", "Bytes in use", |fs| fs.disk.used as f64)
    },
    counter("container_fs_write_seconds_total", "Time spent writing", |fs| {
        seconds(fs.activity.write_millis)
    }),
    counter("container_fs_writes_merged_total", "Cumulative count of writes merged", |fs| {
        fs.activity.writes_merged as f64
    }),
    FilesystemFamily {
        cgroup_value: CgroupValue::Operations(Access::Write),
        ..counter("container_fs_writes_total", "Writes", |fs| fs.activity.writes as f64)
    },
];

/// `rows`: the machine first.
pub(super) fn write(disks: &Disks, rows: &[Row<'_>], out: &mut Exposition) {
    let Some((machine, groups)) = rows.split_first() else { return };
    for FilesystemFamily { name, kind, help, read, cgroup_value } in FILESYSTEMS {
        let of_machine = disks.filesystems.iter().map(|fs| sample(machine, &fs.device, read(fs)));
        let of_groups = groups.iter().flat_map(|row| match cgroup_value {
            CgroupValue::Nothing => Vec::new(),
            CgroupValue::Layer => layer(disks, row).into_iter().collect(),
            CgroupValue::Operations(access) => {
                accesses(disks, row, &row.detail.io.operations, *access).collect()
            }
        });
        out.family(&cadvisor_family(name, help, *kind), of_machine.chain(of_groups));
    }
    for (name, help, access) in [
        ("container_fs_reads_bytes_total", "Bytes read", Access::Read),
        ("container_fs_writes_bytes_total", "Bytes written", Access::Write),
    ] {
        let samples =
            rows.iter().flat_map(|row| accesses(disks, row, &row.detail.io.bytes, access));
        out.family(&cadvisor_family(name, help, MetricKind::Counter), samples);
    }
    let all = rows.iter().flat_map(|row| {
        row.detail.io.bytes.iter().filter_map(|one| {
            let device = disks.devices.get(&one.device)?;
            let mut sample = sample(row, &device.path, one.count as f64);
            let numbers = [("major", device.major.as_str()), ("minor", device.minor.as_str())];
            sample.labels.extend(numbers);
            sample.labels.push(("operation", one.access.as_str()));
            Some(sample)
        })
    });
    let help = "Blkio Device bytes usage";
    out.family(
        &cadvisor_family("container_blkio_device_usage_total", help, MetricKind::Counter),
        all,
    );
}

fn accesses<'a>(
    disks: &'a Disks,
    row: &'a Row<'_>,
    all: &'a [Accesses],
    wanted: Access,
) -> impl Iterator<Item = Sample<'a>> {
    all.iter()
        .filter(move |one| one.access == wanted)
        .filter_map(|one| Some(sample(row, disks.path(one.device)?, one.count as f64)))
}

fn layer<'a>(disks: &'a Disks, row: &'a Row<'_>) -> Option<Sample<'a>> {
    Some(sample(row, disks.path(disks.layers?)?, row.layer? as f64))
}

fn sample<'a>(row: &'a Row<'_>, device: &'a str, value: f64) -> Sample<'a> {
    let mut labels = row.labels();
    labels.push(("device", device));
    Sample { labels, value, at: Some(row.group.at) }
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1e3
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_host::cgroup::{Detail, Io};
    use podwright_host::machine::Disk;

    use super::*;
    use crate::telemetry::stats::CgroupUsage;

    fn row<'a>(group: &'a CgroupUsage, id: &'a str, container: &'a str, detail: Detail) -> Row<'a> {
        let layer = (!container.is_empty()).then_some(4096);
        let (image, name, namespace, pod, started) = ("", "", "", "", None);
        let machine_memory = None;
        Row {
            container,
            id,
            image,
            name,
            namespace,
            pod,
            group,
            detail,
            started,
            layer,
            machine_memory,
        }
    }

    #[test]
    fn machine_has_filesystems_and_cgroups_have_io_per_device() {
        let one = |device, access, count| Accesses { device, access, count };
        let io = Io {
            bytes: vec![one((8, 1), Access::Read, 512), one((9, 9), Access::Write, 7)],
            operations: vec![one((8, 1), Access::Read, 2)],
        };
        let group = CgroupUsage::default();
        let rows = [
            row(&group, "/", "", Detail { io: io.clone(), ..Detail::default() }),
            row(&group, "/pods/a", "app", Detail { io, ..Detail::default() }),
        ];
        let sda1 = BlockDevice {
            number: (8, 1),
            name: "sda1".into(),
            reads: 77,
            ..BlockDevice::default()
        };
        let disk = Disk { capacity: 100, available: 40, used: 60, inodes: 10, inodes_free: 4 };
        let device = "/dev/sda1".to_owned();
        let filesystem = Filesystem { device, disk, activity: sda1.clone() };
        let disks = Disks::new(vec![filesystem], vec![sda1], Some((8, 1)), &rows);
        let mut out = Exposition::default();
        write(&disks, &rows, &mut out);
        let page = out.into_page();
        let values = |name: &str| -> Vec<(String, String)> {
            let lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            let values = lines.map(|line| {
                let field = |key: &str| {
                    let (_, rest) = line.split_once(&format!("{key}=\"")).unwrap();
                    rest.split_once('"').unwrap().0.to_owned()
                };
                let (_, value) = line.rsplit_once('}').unwrap();
                let value = value.split_whitespace().next().unwrap();
                (format!("{} {}", field("id"), field("device")), value.to_owned())
            });
            values.collect()
        };
        for (name, want) in [
            (
                "container_fs_usage_bytes",
                &[("/ /dev/sda1", "60"), ("/pods/a /dev/sda1", "4096")][..],
            ),
            ("container_fs_inodes_free", &[("/ /dev/sda1", "4")]),
            ("container_fs_reads_total", &[("/ /dev/sda1", "77"), ("/pods/a /dev/sda1", "2")]),
            ("container_fs_writes_bytes_total", &[("/ 9:9", "7"), ("/pods/a 9:9", "7")]),
            (
                "container_blkio_device_usage_total",
                &[
                    ("/ /dev/sda1", "512"),
                    ("/ 9:9", "7"),
                    ("/pods/a /dev/sda1", "512"),
                    ("/pods/a 9:9", "7"),
                ],
            ),
        ] {
            let want: Vec<_> = want.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            assert_eq!(values(name), want, "{name}\n{page}");
        }
        assert!(page.contains(r#"major="8",minor="1",operation="Read""#), "{page}");
    }
}
