//! Pause program and its sandbox image.
//!
//! Why `podwright` embeds both: a node must be able to start its first pod without a registry. The
//! program is compiled by the build script from `program/pause.rs`, which documents what it does.

pub mod elf;
pub mod oci;

/// The program: a static executable of about one kilobyte, for the target of this build.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The name under which the image is loaded and requested. The tag is our version, so two versions
/// on one machine do not remove each other's image.
pub const IMAGE: &str = concat!("localhost/podwright/pause:", env!("CARGO_PKG_VERSION"));

/// The user the program runs as unless the pod sets one. It needs no privileges: any user can wait
/// for children and receive signals.
const USER: &str = "65535:65535";

/// The sandbox image: only the program.
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
