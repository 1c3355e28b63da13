//! Authorizer attributes of a request: verb and subresource of this node.

use http::Method;

use crate::server::query::{Plus, decode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    /// Empty for a method that no rule names.
    pub(super) verb: &'static str,
    /// Access to any one of them suffices.
    pub(super) subresources: Vec<&'static str>,
}

impl Attributes {
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let verb = match *method {
            Method::POST => "create",
            Method::GET => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        // A WebSocket begins with GET: a rule that allows reading must not run commands.
        let verb = if runs_in_container(path) { "create" } else { verb };
        Self { verb, subresources: subresources(path) }
    }
}

/// The first segment of a path, as the client sent it.
fn root(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

/// Whether the path runs a command in a container or talks to its processes.
fn runs_in_container(path: &str) -> bool {
    let is_one = |decoded: &str| matches!(decoded, "exec" | "attach" | "run" | "portForward");
    // As the router decodes it.
    decode(root(path), Plus::Itself).is_some_and(|decoded| is_one(&decoded))
}

/// Fine-grained subresources, so that harmless paths can be granted without `proxy`.
fn subresources(path: &str) -> Vec<&'static str> {
    // The path is not decoded: an encoded path that decodes to another one is `proxy`.
    match root(path) {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "statusz" => vec!["statusz"],
        "flagz" => vec!["configz"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        _ => vec!["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_maps_to_subresources() {
        for (path, want) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/syslog", &["log"]),
            ("/exec/ns/web/app", &["proxy"]),
            ("/containerLogs/ns/web/app", &["proxy"]),
            ("/podsandmore", &["proxy"]),
            ("/%70ods", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ] {
            assert_eq!(subresources(path), want, "{path}");
        }
    }

    /// `exec` over a WebSocket is a GET.
    #[test]
    fn permission_to_get_does_not_run_commands() {
        for path in [
            "/exec/ns/web/app",
            "/attach/ns/web/app",
            "/portForward/ns/web",
            "/run/ns/web/app",
            "/%65xec/ns/web/app",
            "/exec",
        ] {
            for method in [Method::GET, Method::HEAD, Method::POST] {
                let want = Attributes { verb: "create", subresources: vec!["proxy"] };
                assert_eq!(Attributes::of(&method, path), want, "{method} {path}");
            }
        }
        let logs = Attributes::of(&Method::GET, "/containerLogs/ns/web/app");
        assert_eq!(logs.verb, "get");
    }

    #[test]
    fn each_method_maps_to_a_verb() {
        for (method, want) in [
            (Method::GET, "get"),
            (Method::POST, "create"),
            (Method::PUT, "update"),
            (Method::PATCH, "patch"),
            (Method::DELETE, "delete"),
            (Method::OPTIONS, ""),
        ] {
            assert_eq!(Attributes::of(&method, "/pods").verb, want);
        }
    }
}
