//! The program that holds a pod's sandbox open, and the image a runtime knows it by.
//!
//! Why `podwright` carries both: a node must be able to start its first pod with no registry in
//! reach. The program is compiled by the build script from `program/pause.rs`; what it does is
//! told there.

pub mod elf;
pub mod oci;

/// The program: a static executable of about one kilobyte, for the target of this build.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The name under which the image is loaded and asked for. The tag is our version, so two
/// versions on one machine do not take each other's image away.
pub const IMAGE: &str = concat!("localhost/podwright/pause:", env!("CARGO_PKG_VERSION"));

/// The user the program runs as where the pod names none. It needs no right at all: whoever
/// waits for a child or receives a signal may be anyone.
const USER: &str = "65535:65535";

/// The sandbox image: the program, and nothing beside it.
pub fn image() -> Result<oci::Image, oci::Error> {
    let mut layer = oci::Layer::default();
    layer.file("/pause", 0o755, PROGRAM)?;
    Ok(oci::Image {
        name: IMAGE.into(),
        config: oci::Config {
            user: USER.into(),
            entrypoint: vec!["/pause".into()],
            working_dir: "/".into(),
            ..oci::Config::default()
        },
        layer: layer.pack()?,
    })
}

/// The sandbox image as an OCI archive, for any runtime to import.
pub fn archive() -> Result<Vec<u8>, oci::Error> {
    oci::archive(&[image()?])
}
