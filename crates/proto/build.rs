//! Generates Rust from `proto/` without protoc: a fresh machine needs nothing but cargo.

use std::path::{Path, PathBuf};
use std::{env, error, fs};

use prost_types::FileDescriptorSet;
use protox::prost::Message;

/// Everything else is imported by one of these.
const ROOTS: [&str; 6] = [
    "cri/runtime_service.proto",
    "cri/image_service.proto",
    "containerd/content.proto",
    "containerd/events.proto",
    "containerd/tasks.proto",
    "grpc/health.proto",
];

/// Messages that carry secrets; src/redact.rs implements Debug for them without the secret.
const SECRET: [&str; 2] = [".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"];

/// Messages that containerd shows as JSON in its verbose statuses, with the names of the fields.
const RECORDED: [&str; 24] = [
    "CDIDevice",
    "Capability",
    "ContainerConfig",
    "ContainerMetadata",
    "DNSConfig",
    "Device",
    "HugepageLimit",
    "IDMapping",
    "ImageSpec",
    "Int64Value",
    "KeyValue",
    "LinuxContainerConfig",
    "LinuxContainerResources",
    "LinuxContainerSecurityContext",
    "LinuxPodSandboxConfig",
    "LinuxSandboxSecurityContext",
    "Mount",
    "NamespaceOption",
    "PodSandboxConfig",
    "PodSandboxMetadata",
    "PortMapping",
    "SELinuxOption",
    "SecurityProfile",
    "UserNamespace",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(ROOTS, ["proto"])?;
    if enabled("DESCRIPTORS") {
        let out = PathBuf::from(env::var("OUT_DIR")?);
        write_descriptors(files.clone(), &out.join("descriptors.bin"))?;
    }
    let mut config = tonic_prost_build::configure();
    for message in RECORDED {
        let attributes = "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]";
        config = config.message_attribute(format!("runtime.v1.{message}"), attributes);
    }
    config
        .field_attribute("runtime.v1.KeyValue.value", "#[serde(with = \"crate::go_string\")]")
        .field_attribute(
            "runtime.v1.ContainerConfig.CDI_devices",
            "#[serde(rename = \"CDI_devices\")]",
        )
        .field_attribute("runtime.v1.Mount.uidMappings", "#[serde(rename = \"uidMappings\")]")
        .field_attribute("runtime.v1.Mount.gidMappings", "#[serde(rename = \"gidMappings\")]")
        .build_client(enabled("GRPC"))
        .build_server(enabled("GRPC"))
        .btree_map(".") // one order for the same labels: equal messages are equal bytes
        .skip_debug(SECRET)
        .emit_rerun_if_changed(false)
        .compile_fds(files)?;
    Ok(())
}

fn enabled(feature: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{feature}")).is_some()
}

/// Source comments and positions are left out: they are unused at run time.
fn write_descriptors(mut files: FileDescriptorSet, to: &Path) -> std::io::Result<()> {
    for file in &mut files.file {
        file.source_code_info = None;
    }
    fs::write(to, files.encode_to_vec())
}
