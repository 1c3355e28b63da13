//! Linkage of ELF programs: static or dynamic.
//!
//! A dynamic program names a loader that the kernel starts in its place. In an image without
//! libraries that fails with "no such file or directory" for a file that exists, so programs are
//! checked before they are added.

/// How the kernel starts a program, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// The kernel starts it directly.
    Static,
    /// It needs a loader and shared libraries.
    Dynamic,
}

/// The linkage of a 64-bit little-endian ELF program, or `None` if that is not what it is.
pub fn linkage(program: &[u8]) -> Option<Linkage> {
    const MAGIC_64_BIT_LITTLE_ENDIAN: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    const PT_INTERP: u32 = 3;
    if !program.starts_with(&MAGIC_64_BIT_LITTLE_ENDIAN) {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(bytes(program, 32)?)).ok()?;
    let entry_size = usize::from(u16::from_le_bytes(bytes(program, 54)?));
    let entries = u16::from_le_bytes(bytes(program, 56)?);
    for index in 0..usize::from(entries) {
        let entry = table.checked_add(index.checked_mul(entry_size)?)?;
        if u32::from_le_bytes(bytes(program, entry)?) == PT_INTERP {
            return Some(Linkage::Dynamic);
        }
    }
    Some(Linkage::Static)
}

fn bytes<const N: usize>(program: &[u8], at: usize) -> Option<[u8; N]> {
    program.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_program_needs_no_loader() {
        assert_eq!(linkage(crate::PROGRAM), Some(Linkage::Static));
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let test = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(linkage(&test), Some(Linkage::Dynamic));
    }

    #[test]
    fn invalid_or_truncated_program_has_no_linkage() {
        for length in 0..crate::PROGRAM.len().min(64) {
            assert_eq!(linkage(&crate::PROGRAM[..length]), None, "first {length} bytes");
        }
        assert_eq!(linkage(b"#!/bin/sh\n"), None);

        let mut table_past_the_end = crate::PROGRAM.to_vec();
        table_past_the_end[32..40].fill(0xff);
        assert_eq!(linkage(&table_past_the_end), None);
    }
}
