//! Protobuf types of the APIs Podwright uses, generated from its own `.proto` files.
//!
//! Why own files: protobuf skips undeclared fields, so these declare only what a Linux node agent
//! reads and writes. `tests/` checks every field number against published types.
//!
//! The default build has only messages and no dependency that does I/O, so the pure core can use
//! it. Feature `grpc` adds tonic clients and servers, feature `descriptors` the compiled
//! descriptors for converting messages to JSON.

#![allow(unused_qualifications, reason = "generated code spells every path in full")]

/// CRI `runtime.v1`, as the kubelet of Kubernetes v1.36 uses it.
pub mod cri {
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
}

/// containerd's event stream, and the task events that travel in it.
///
/// Choose the message for an [`Envelope`](containerd_events::Envelope) by its topic,
/// never by the type URL.
pub mod containerd_events {
    include!(concat!(env!("OUT_DIR"), "/containerd.services.events.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/containerd.events.rs"));
}

/// containerd's content store, for the progress of image downloads.
pub mod containerd_content {
    include!(concat!(env!("OUT_DIR"), "/containerd.services.content.v1.rs"));
}

/// The gRPC health protocol, for gRPC probes.
pub mod grpc_health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

mod go_string;
mod redact;

/// All of the above as an encoded `google.protobuf.FileDescriptorSet`.
#[cfg(feature = "descriptors")]
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
