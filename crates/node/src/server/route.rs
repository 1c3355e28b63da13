//! Routing of requests to the kubelet server.
//!
//! Paths are upstream's. A path segment that is empty, `.`, `..`, or decodes to text with a slash or
//! a NUL is rejected, so no segment can escape its position in the path.

use http::Method;
use podwright_core::ids::PodName;

use super::query::{Plus, decode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Health(Check),
    Pods,
    RunningPods,
    Configuration,
    Metrics(Page),
    Summary,
    Logs(Target),
    Exec(Target),
    Attach(Target),
    Run(Target),
    PortForward { pod: PodName, uid: Option<String> },
}

/// A health check of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    All,
    Ping,
    Log,
    SyncLoop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Metrics of the agent itself.
    Agent,
    /// Metrics of containers and the machine, for dashboards.
    Cadvisor,
    /// Metrics of containers, pods and the node, for autoscalers.
    Resource,
    Probes,
}

/// A container of a pod, as named by a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pod: PodName,
    pub(super) uid: Option<String>,
    pub(super) container: String,
}

/// The set of served endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surface {
    Full,
    /// `enableDebuggingHandlers: false`: no exec and no logs.
    NoDebugging,
    /// The port without authentication.
    ReadOnly,
}

/// Reason that a request has no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    NotFound,
    /// The endpoint exists, but not with this number of segments.
    Malformed,
    Method {
        allowed: &'static str,
    },
    Disabled,
}

/// The methods of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Methods {
    Read,
    ReadOrPost,
    Post,
}

impl Methods {
    fn contain(self, method: &Method) -> bool {
        match self {
            Self::Read => matches!(*method, Method::GET | Method::HEAD),
            Self::ReadOrPost => matches!(*method, Method::GET | Method::POST),
            Self::Post => *method == Method::POST,
        }
    }

    /// Value of the `Allow` header.
    fn named(self) -> &'static str {
        match self {
            Self::Read => "GET",
            Self::ReadOrPost => "GET, POST",
            Self::Post => "POST",
        }
    }
}

/// First segments of the debugging endpoints.
const DEBUGGING: [&str; 8] =
    ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug"];

/// Paths that requests are counted by; all others share one label.
const COUNTED: [&str; 13] = [
    "attach",
    "configz",
    "containerLogs",
    "exec",
    "healthz",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "runningpods",
];

pub(super) fn route(surface: Surface, method: &Method, path: &str) -> Result<Route, Miss> {
    let parts = parts(path).ok_or(Miss::NotFound)?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let Some((&first, rest)) = parts.split_first() else { return Err(Miss::NotFound) };
    match surface {
        Surface::Full => {}
        Surface::NoDebugging | Surface::ReadOnly => {
            // As upstream: for everything below these paths, but not for the paths themselves.
            if DEBUGGING.contains(&first) && (!rest.is_empty() || path.ends_with('/')) {
                return Err(Miss::Disabled);
            }
            if DEBUGGING.contains(&first) || first == "configz" {
                return Err(Miss::NotFound);
            }
        }
    }
    let (route, methods) = match (first, rest) {
        ("healthz", []) => (Route::Health(Check::All), Methods::Read),
        ("healthz", ["ping"]) => (Route::Health(Check::Ping), Methods::Read),
        ("healthz", ["log"]) => (Route::Health(Check::Log), Methods::Read),
        ("healthz", ["syncloop"]) => (Route::Health(Check::SyncLoop), Methods::Read),
        ("pods", []) => (Route::Pods, Methods::Read),
        ("runningpods", []) => (Route::RunningPods, Methods::Read),
        ("configz", []) => (Route::Configuration, Methods::Read),
        ("metrics", []) => (Route::Metrics(Page::Agent), Methods::Read),
        ("metrics", ["cadvisor"]) => (Route::Metrics(Page::Cadvisor), Methods::Read),
        ("metrics", ["resource"]) => (Route::Metrics(Page::Resource), Methods::Read),
        ("metrics", ["probes"]) => (Route::Metrics(Page::Probes), Methods::Read),
        ("stats", ["summary"]) => (Route::Summary, Methods::ReadOrPost),
        ("containerLogs", [namespace, pod, container]) => {
            (Route::Logs(target(namespace, pod, None, container)), Methods::Read)
        }
        ("exec", rest) => (Route::Exec(container_of(rest)?), Methods::ReadOrPost),
        ("attach", rest) => (Route::Attach(container_of(rest)?), Methods::ReadOrPost),
        ("run", rest) => (Route::Run(container_of(rest)?), Methods::Post),
        ("portForward", [namespace, pod, rest @ ..]) if rest.len() <= 1 => {
            let uid = rest.first().map(|uid| (*uid).to_owned());
            (Route::PortForward { pod: PodName::new(*namespace, *pod), uid }, Methods::ReadOrPost)
        }
        ("containerLogs" | "portForward" | "stats" | "pods" | "runningpods", _) => {
            return Err(Miss::Malformed);
        }
        _ => return Err(Miss::NotFound),
    };
    if methods.contain(method) { Ok(route) } else { Err(Miss::Method { allowed: methods.named() }) }
}

/// `{namespace}/{pod}/{container}` or `{namespace}/{pod}/{uid}/{container}`.
fn container_of(parts: &[&str]) -> Result<Target, Miss> {
    match parts {
        [namespace, pod, container] => Ok(target(namespace, pod, None, container)),
        [namespace, pod, uid, container] => Ok(target(namespace, pod, Some(uid), container)),
        _ => Err(Miss::Malformed),
    }
}

fn target(namespace: &str, pod: &str, uid: Option<&str>, container: &str) -> Target {
    Target {
        pod: PodName::new(namespace, pod),
        uid: uid.map(str::to_owned),
        container: container.to_owned(),
    }
}

/// The decoded segments of a path; `None` if one is invalid. One trailing slash is allowed.
fn parts(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Some(Vec::new());
    }
    let part = |raw: &str| {
        let part = decode(raw, Plus::Itself)?;
        let named = !matches!(part.as_str(), "" | "." | "..") && !part.contains(['/', '\\', '\0']);
        named.then_some(part)
    };
    path.split('/').map(part).collect()
}

/// The metric label of a request. A path chosen by a client is never a label.
pub(super) fn counted_as(path: &str) -> &'static str {
    let path = path.trim_start_matches('/');
    let mut parts = path.splitn(3, '/');
    let first = parts.next().unwrap_or_default();
    let second = parts.next().unwrap_or_default();
    let named = |name: &&&str| match name.split_once('/') {
        Some((root, page)) => root == first && page == second,
        None => **name == first && (first != "metrics" || second.is_empty()),
    };
    match COUNTED.iter().find(named) {
        Some(name) => name,
        None if first == "stats" => "stats",
        None => "Invalid path",
    }
}

/// Whether upstream counts the endpoint as long-running.
pub(super) fn is_long_running(counted_as: &str) -> bool {
    matches!(counted_as, "exec" | "attach" | "portforward" | "debug")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get(path: &str) -> Result<Route, Miss> {
        route(Surface::Full, &Method::GET, path)
    }

    fn container(uid: Option<&str>) -> Target {
        target("ns", "web", uid, "app")
    }

    #[test]
    fn every_endpoint_has_its_path() {
        for (path, want) in [
            ("/healthz", Route::Health(Check::All)),
            ("/healthz/syncloop", Route::Health(Check::SyncLoop)),
            ("/pods", Route::Pods),
            ("/pods/", Route::Pods),
            ("/runningpods/", Route::RunningPods),
            ("/configz", Route::Configuration),
            ("/metrics", Route::Metrics(Page::Agent)),
            ("/metrics/cadvisor", Route::Metrics(Page::Cadvisor)),
            ("/metrics/resource", Route::Metrics(Page::Resource)),
            ("/metrics/probes", Route::Metrics(Page::Probes)),
            ("/stats/summary", Route::Summary),
            ("/containerLogs/ns/web/app", Route::Logs(container(None))),
            ("/exec/ns/web/app", Route::Exec(container(None))),
            ("/exec/ns/web/u-1/app", Route::Exec(container(Some("u-1")))),
            ("/attach/ns/web/app", Route::Attach(container(None))),
            ("/attach/ns/web/u-1/app", Route::Attach(container(Some("u-1")))),
            (
                "/portForward/ns/web",
                Route::PortForward { pod: PodName::new("ns", "web"), uid: None },
            ),
            (
                "/portForward/ns/web/u-1",
                Route::PortForward { pod: PodName::new("ns", "web"), uid: Some("u-1".into()) },
            ),
            ("/exec/ns/%77eb/app", Route::Exec(container(None))),
        ] {
            assert_eq!(get(path), Ok(want), "{path}");
        }
    }

    #[test]
    fn unknown_paths_are_not_found() {
        for path in [
            "",
            "/",
            "//",
            "*",
            "/nothing",
            "/pod",
            "/healthz/no",
            "/logs/syslog",
            "/debug/pprof/",
            "/checkpoint/ns/web/app",
            "/statusz",
            "/flagz",
            "/metrics/slis",
            "/stats",
            "/exec",
            "/exec/ns/web",
            "/exec/ns/web/u/app/more",
            "/containerLogs/ns/web",
            "/containerLogs/ns/web/app/more",
            "/portForward/ns",
            "/portForward/ns/a/b/c",
        ] {
            let found = get(path);
            assert!(matches!(found, Err(Miss::NotFound | Miss::Malformed)), "{path}: {found:?}");
        }
    }

    #[test]
    fn path_traversal_is_rejected() {
        for path in [
            "/containerLogs/../../etc",
            "/containerLogs/ns/..%2f..%2fetc/passwd",
            "/containerLogs/ns/%2e%2e/app",
            "/containerLogs/ns/web/..",
            "/containerLogs/ns/web/%2e%2e%2f%2e%2e",
            "/containerLogs/ns/web/%00",
            "/containerLogs/ns//app",
            "/containerLogs/ns/./app",
            "/containerLogs/ns/web/a%5cb",
            "/containerLogs/ns/web/%",
            "/containerLogs/ns/web/%ff%fe",
        ] {
            assert!(matches!(get(path), Err(Miss::NotFound | Miss::Malformed)), "{path}");
        }
        // Decoded once: a doubly encoded name is the name of a container that does not exist.
        assert!(get("/containerLogs/ns/web/%252e%252e").is_ok());
    }

    #[test]
    fn each_endpoint_accepts_its_methods() {
        for (method, path, allowed) in [
            (Method::POST, "/pods", Some("GET")),
            (Method::DELETE, "/exec/ns/web/app", Some("GET, POST")),
            (Method::GET, "/run/ns/web/app", Some("POST")),
            (Method::POST, "/run/ns/web/app", None),
            (Method::POST, "/exec/ns/web/app", None),
            (Method::POST, "/stats/summary", None),
            (Method::HEAD, "/metrics", None),
        ] {
            let found = route(Surface::Full, &method, path);
            match allowed {
                Some(allowed) => assert_eq!(found, Err(Miss::Method { allowed }), "{path}"),
                None => assert!(found.is_ok(), "{method} {path}"),
            }
        }
    }

    /// Upstream serves the log files of the node below `/logs`; this server does not.
    #[test]
    fn log_files_of_the_node_are_never_served() {
        for path in [
            "/logs",
            "/logs/",
            "/logs/syslog",
            "/logs/../../etc/passwd",
            "/logs/%2e%2e/%2e%2e/etc/passwd",
            "/logs/..%2f..%2fetc%2fpasswd",
            "/logs/?query=../../etc/shadow",
        ] {
            // The query is not part of the path.
            let path = path.split('?').next().unwrap();
            assert_eq!(get(path), Err(Miss::NotFound), "{path}");
            for surface in [Surface::ReadOnly, Surface::NoDebugging] {
                let found = route(surface, &Method::GET, path);
                assert!(matches!(found, Err(Miss::NotFound | Miss::Disabled)), "{path}: {found:?}");
            }
        }
    }

    #[test]
    fn read_only_port_serves_only_metrics_and_pods() {
        for (path, want) in [
            ("/pods", None),
            ("/healthz", None),
            ("/metrics/cadvisor", None),
            ("/stats/summary", None),
            ("/exec/ns/web/app", Some(Miss::Disabled)),
            ("/run/ns/web/app", Some(Miss::Disabled)),
            ("/containerLogs/ns/web/app", Some(Miss::Disabled)),
            ("/runningpods/", Some(Miss::Disabled)),
            ("/logs/", Some(Miss::Disabled)),
            ("/configz", Some(Miss::NotFound)),
            ("/other", Some(Miss::NotFound)),
        ] {
            for surface in [Surface::ReadOnly, Surface::NoDebugging] {
                assert_eq!(route(surface, &Method::GET, path).err(), want, "{path}");
            }
        }
        let exec = route(Surface::ReadOnly, &Method::POST, "/exec/ns/web/app");
        assert_eq!(exec, Err(Miss::Disabled));
    }

    #[test]
    fn requests_are_counted_by_endpoint_and_unknown_paths_together() {
        for (path, want) in [
            ("/pods", "pods"),
            ("/exec/ns/web/app", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/resource", "metrics/resource"),
            ("/metrics/own", "Invalid path"),
            ("/stats/summary", "stats"),
            ("/healthz/ping", "healthz"),
            ("/secret-scan-1", "Invalid path"),
            ("", "Invalid path"),
        ] {
            assert_eq!(counted_as(path), want, "{path}");
        }
    }

    /// Paths of clients, with mistakes and attacks.
    fn paths() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "exec",
            "attach",
            "run",
            "containerLogs",
            "portForward",
            "metrics",
            "cadvisor",
            "healthz",
            "pods",
            "runningpods",
            "stats",
            "summary",
            "logs",
            "debug",
            "ns",
            "web",
            "app",
        ]);
        let trick = prop::sample::select(vec![
            "", "..", ".", "%2e", "%2e%2e", "%2f", "%5c", "%00", "%", "%f", "%ff", "\\", "?", "é",
        ]);
        let part = prop_oneof![
            6 => word.prop_map(str::to_owned),
            3 => trick.prop_map(str::to_owned),
            1 => any::<String>(),
        ];
        let begin = prop_oneof![9 => Just("/"), 1 => Just("")];
        (begin, prop::collection::vec(part, 0..8))
            .prop_map(|(begin, parts)| format!("{begin}{}", parts.join("/")))
    }

    fn methods() -> impl Strategy<Value = Method> {
        let known = vec![Method::GET, Method::POST, Method::HEAD, Method::PUT, Method::DELETE];
        prop::sample::select(known)
    }

    /// The names that a route takes from its path.
    fn names(route: &Route) -> Vec<String> {
        match route {
            Route::Logs(t) | Route::Exec(t) | Route::Attach(t) | Route::Run(t) => {
                let uid = t.uid.clone().unwrap_or("u".into());
                vec![t.pod.namespace.to_string(), t.pod.name.to_string(), t.container.clone(), uid]
            }
            Route::PortForward { pod, uid } => {
                let uid = uid.clone().unwrap_or("u".into());
                vec![pod.namespace.to_string(), pod.name.to_string(), uid]
            }
            Route::Health(_)
            | Route::Pods
            | Route::RunningPods
            | Route::Configuration
            | Route::Metrics(_)
            | Route::Summary => vec![],
        }
    }

    fn runs_or_reads(route: &Route) -> bool {
        !names(route).is_empty() || matches!(route, Route::RunningPods | Route::Configuration)
    }

    proptest! {
        #![proptest_config(podwright_testkit::mutation::config_of(4_096))]

        #[test]
        fn random_path_traversal_is_rejected(path in paths(), method in methods()) {
            let Ok(found) = route(Surface::Full, &method, &path) else { return Ok(()) };
            for name in names(&found) {
                let plain = !name.is_empty() && !name.contains(['/', '\\', '\0']);
                prop_assert!(plain && name != ".." && name != ".", "{path} names {name:?}");
            }
            // The labels of requests come from a fixed list.
            prop_assert!(COUNTED.contains(&counted_as(&path)) || ["stats", "Invalid path"].contains(&counted_as(&path)));
        }

        #[test]
        fn restricted_surfaces_serve_a_subset(path in paths(), method in methods()) {
            let full = route(Surface::Full, &method, &path);
            for surface in [Surface::NoDebugging, Surface::ReadOnly] {
                if let Ok(found) = route(surface, &method, &path) {
                    prop_assert!(!runs_or_reads(&found), "{path} is open at {surface:?}");
                    prop_assert_eq!(&full, &Ok(found));
                }
            }
        }
    }
}
