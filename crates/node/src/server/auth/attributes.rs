//! Authorizer attributes of a request: verb and subresource of this node.

use http::Method;

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
        Self { verb, subresources: subresources(path) }
    }
}

/// Fine-grained subresources, so that harmless paths can be granted without `proxy`.
fn subresources(path: &str) -> Vec<&'static str> {
    // The path is not decoded: an encoded path that decodes to another one is `proxy`.
    let root = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match root {
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
