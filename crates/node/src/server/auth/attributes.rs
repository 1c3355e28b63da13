//! What a request means to an authorizer: a verb on a part of this node.

use http::Method;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    /// Empty for a method that no rule names.
    pub(super) verb: &'static str,
    /// Being allowed any one of them suffices.
    pub(super) subresources: Vec<&'static str>,
}

impl Attributes {
    /// `fine_grained`: parts that show little can be granted without all the others.
    pub(super) fn of(method: &Method, path: &str, fine_grained: bool) -> Self {
        let verb = match *method {
            Method::POST => "create",
            Method::GET => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        Self { verb, subresources: subresources(path, fine_grained) }
    }
}

fn subresources(path: &str, fine_grained: bool) -> Vec<&'static str> {
    // The path as it was sent: what only looks like another after decoding is `proxy`.
    let root = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match root {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "statusz" => vec!["statusz"],
        "flagz" => vec!["configz"],
        "pods" | "runningpods" if fine_grained => vec!["pods", "proxy"],
        "healthz" if fine_grained => vec!["healthz", "proxy"],
        "configz" if fine_grained => vec!["configz", "proxy"],
        _ => vec!["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_a_part_of_the_node() {
        for (path, fine, want) in [
            ("/pods", true, &["pods", "proxy"][..]),
            ("/runningpods/", true, &["pods", "proxy"]),
            ("/pods", false, &["proxy"]),
            ("/healthz", true, &["healthz", "proxy"]),
            ("/healthz/syncloop", true, &["healthz", "proxy"]),
            ("/configz", true, &["configz", "proxy"]),
            ("/stats/summary", true, &["stats"]),
            ("/metrics", true, &["metrics"]),
            ("/metrics/cadvisor", false, &["metrics"]),
            ("/logs/syslog", true, &["log"]),
            ("/exec/ns/web/app", true, &["proxy"]),
            ("/containerLogs/ns/web/app", true, &["proxy"]),
            ("/podsandmore", true, &["proxy"]),
            ("/%70ods", true, &["proxy"]),
            ("/", true, &["proxy"]),
            ("", true, &["proxy"]),
        ] {
            assert_eq!(subresources(path, fine), want, "{path}");
        }
    }

    #[test]
    fn each_method_is_a_verb() {
        for (method, want) in [
            (Method::GET, "get"),
            (Method::POST, "create"),
            (Method::PUT, "update"),
            (Method::PATCH, "patch"),
            (Method::DELETE, "delete"),
            (Method::OPTIONS, ""),
        ] {
            assert_eq!(Attributes::of(&method, "/pods", true).verb, want);
        }
    }
}
