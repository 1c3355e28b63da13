//! Block device I/O of a group.

/// A kind of access, by the kernel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Sync,
    Async,
    Discard,
    Total,
}

impl Access {
    const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Sync, Self::Async, Self::Discard, Self::Total];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write => "Write",
            Self::Sync => "Sync",
            Self::Async => "Async",
            Self::Discard => "Discard",
            Self::Total => "Total",
        }
    }
}

/// A count of one kind of access to one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// Major and minor number.
    pub device: (u32, u32),
    pub access: Access,
    pub count: u64,
}

/// Since the group was created, including the groups below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Io {
    pub bytes: Vec<Accesses>,
    pub operations: Vec<Accesses>,
}

/// A file of v1: `8:0 Read 4096` in each line, and a sum of all devices at the end.
pub(super) fn v1(text: &str) -> Vec<Accesses> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let device = device(words.next()?)?;
        let name = words.next()?;
        let access = Access::ALL.into_iter().find(|access| access.as_str() == name)?;
        Some(Accesses { device, access, count: words.next()?.parse().ok()? })
    };
    text.lines().filter_map(line).collect()
}

/// `io.stat` of v2: `8:0 rbytes=4096 wbytes=0 rios=1 wios=0` in each line.
pub(super) fn v2(text: &str) -> Io {
    let mut io = Io::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(device) = words.next().and_then(device) else { continue };
        for (key, count) in words.filter_map(|word| word.split_once('=')) {
            let (list, access) = match key {
                "rbytes" => (&mut io.bytes, Access::Read),
                "wbytes" => (&mut io.bytes, Access::Write),
                "rios" => (&mut io.operations, Access::Read),
                "wios" => (&mut io.operations, Access::Write),
                _ => continue,
            };
            list.extend(count.parse().ok().map(|count| Accesses { device, access, count }));
        }
    }
    io
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_read_as_either_kernel_interface_writes_them() {
        let one = |access, count| Accesses { device: (8, 16), access, count };
        let text = "8:16 Read 4096\n8:16 Total 5000\n8:16 Dreaming 1\nTotal 5000\n8 Read 1\n\n";
        assert_eq!(v1(text), [one(Access::Read, 4096), one(Access::Total, 5000)]);
        let text =
            "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=x\n7:0 \nbroken\n8:16 rios=x";
        let want = Io {
            bytes: vec![one(Access::Read, 1), one(Access::Write, 2)],
            operations: vec![one(Access::Read, 3), one(Access::Write, 4)],
        };
        assert_eq!(v2(text), want);
    }
}
