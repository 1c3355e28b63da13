//! Intended differences between our messages and those of `k8s-cri` 0.11 (CRI of Kubernetes 1.32).
//!
//! A field that gets lost and is not in these tables fails the tests.

use prost_reflect::FieldDescriptor;

/// Message, field, number, type and the Kubernetes release that added it.
///
/// No published crate can confirm these, so each is written twice: here and in `proto/`.
pub(crate) const NEWER_FIELDS: &[(&str, &str, u32, &str, &str)] = &[
    ("ContainerConfig", "stop_signal", 18, "Signal", "1.33"),
    ("ContainerStats", "io", 6, "IoUsage", "1.33"),
    ("ContainerStatus", "stop_signal", 19, "Signal", "1.33"),
    ("CpuUsage", "psi", 4, "PsiStats", "1.33"),
    ("ImageSpec", "image_ref", 20, "string", "1.36"),
    ("IoUsage", "psi", 2, "PsiStats", "1.33"),
    ("IoUsage", "timestamp", 1, "int64", "1.33"),
    ("LinuxPodSandboxStats", "io", 6, "IoUsage", "1.33"),
    ("MemoryUsage", "psi", 8, "PsiStats", "1.33"),
    ("Mount", "image_sub_path", 10, "string", "1.33"),
    ("PsiData", "Avg10", 2, "double", "1.33"),
    ("PsiData", "Avg300", 4, "double", "1.33"),
    ("PsiData", "Avg60", 3, "double", "1.33"),
    ("PsiData", "Total", 1, "uint64", "1.33"),
    ("PsiStats", "Full", 1, "PsiData", "1.33"),
    ("PsiStats", "Some", 2, "PsiData", "1.33"),
    ("RuntimeFeatures", "user_namespaces_host_network", 2, "bool", "1.36"),
    ("UpdatePodSandboxResourcesRequest", "overhead", 2, "LinuxContainerResources", "1.33"),
    ("UpdatePodSandboxResourcesRequest", "pod_sandbox_id", 1, "string", "1.33"),
    ("UpdatePodSandboxResourcesRequest", "resources", 3, "LinuxContainerResources", "1.33"),
];

/// Messages and enums that are newer as a whole, with the release that added them.
pub(crate) const NEWER_TYPES: &[(&str, &str)] = &[
    ("IoUsage", "1.33"),
    ("PsiData", "1.33"),
    ("PsiStats", "1.33"),
    ("Signal", "1.33"),
    ("UpdatePodSandboxResourcesRequest", "1.33"),
    ("UpdatePodSandboxResourcesResponse", "1.33"),
];

/// Message, field, number and empty value of what only Windows or older agents use.
pub(crate) const LEFT_OUT: &[(&str, &str, u32, Option<&str>)] = &[
    ("ContainerConfig", "windows", 16, None),
    ("ContainerResources", "windows", 2, None),
    ("LinuxContainerSecurityContext", "seccomp_profile_path", 10, Some("")),
    ("LinuxSandboxSecurityContext", "seccomp_profile_path", 7, Some("")),
    ("PodSandboxConfig", "windows", 9, None),
    ("PodSandboxStats", "windows", 3, None),
    ("UpdateContainerResourcesRequest", "windows", 3, None),
];

/// Text until Kubernetes 1.33, bytes since 1.34: the same on the wire.
pub(crate) const TEXT_BEFORE: &str = "runtime.v1.KeyValue.value";

pub(crate) fn is_newer(field: &FieldDescriptor) -> bool {
    let message = field.parent_message();
    NEWER_FIELDS.iter().any(|row| row.0 == message.name() && row.1 == field.name())
}

pub(crate) fn is_newer_type(name: &str) -> bool {
    NEWER_TYPES.iter().any(|row| row.0 == name)
}
