//! Fuzz targets: one function for each parser of outside data.
//!
//! A target takes any bytes. It panics only if the product is wrong: because the parser panics, or
//! because its result breaks a promise. The test in this crate runs every target on mutated seeds;
//! `./fuzz` runs one with libFuzzer, guided by coverage.

mod api;
mod files;
mod kubelet_server;
mod machine;
mod manifests;
mod registries;
mod runtime;
mod text;

/// A parser and examples of its input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Valid input to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets, in the order of the page that lists them.
pub const TARGETS: [Target; 21] = [
    Target { name: "manifests", run: manifests::manifests, seeds: manifests::manifest_seeds },
    Target { name: "pods", run: manifests::pods, seeds: manifests::pod_seeds },
    Target {
        name: "configuration",
        run: manifests::configuration,
        seeds: manifests::configuration_seeds,
    },
    Target { name: "quantities", run: text::quantities, seeds: text::quantity_seeds },
    Target { name: "logs", run: text::logs, seeds: text::log_seeds },
    Target { name: "redirects", run: text::redirects, seeds: text::redirect_seeds },
    Target { name: "image_names", run: registries::image_names, seeds: registries::name_seeds },
    Target {
        name: "docker_configs",
        run: registries::docker_configs,
        seeds: registries::docker_config_seeds,
    },
    Target {
        name: "credential_plugins",
        run: registries::credential_plugins,
        seeds: registries::plugin_seeds,
    },
    Target { name: "runtime_replies", run: runtime::replies, seeds: runtime::seeds },
    Target { name: "checkpoints", run: files::checkpoints, seeds: files::checkpoint_seeds },
    Target { name: "records", run: files::records, seeds: files::record_seeds },
    Target { name: "mountinfo", run: machine::mountinfo, seeds: machine::mountinfo_seeds },
    Target { name: "cgroup_files", run: machine::cgroup_files, seeds: machine::cgroup_seeds },
    Target { name: "kernel_files", run: machine::kernel_files, seeds: machine::kernel_seeds },
    Target { name: "network_tables", run: machine::network_tables, seeds: machine::network_seeds },
    Target {
        name: "kubelet_requests",
        run: kubelet_server::requests,
        seeds: kubelet_server::seeds,
    },
    Target { name: "api_requests", run: api::requests, seeds: api::request_seeds },
    Target { name: "api_objects", run: api::objects, seeds: api::object_seeds },
    Target { name: "api_patches", run: api::patches, seeds: api::patch_seeds },
    Target { name: "api_queries", run: api::queries, seeds: api::query_seeds },
];

pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The parts of an input that has several, each begun by a line with its name: `== name`.
fn parts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.strip_prefix("== ").into_iter().flat_map(|rest| rest.split("\n== "));
    parts.map(|part| part.split_once('\n').unwrap_or((part, "")))
}

fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
