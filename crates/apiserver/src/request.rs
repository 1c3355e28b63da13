//! Request info: target, verb and object, from the method and path of a request.
//!
//! Why by hand and not with a route per kind: every kind has the same dozen paths, and
//! authorization needs these facts in one value first.

use http::Method;

use crate::openapi;
use crate::registry::{self, RESOURCES, Resource, Subresource, Verb};
use crate::unserved::{self, UNSERVED, UnservedKind};

/// A parsed path.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(&'static str),
    /// `/api/v1`, `/apis/{group}/{version}`
    GroupVersion {
        group: &'static str,
        version: &'static str,
    },
    Version,
    /// `/healthz`, `/livez`, `/readyz`, and paths below them.
    Health,
    /// `/openapi/…`
    OpenApi(openapi::OpenApiPage),
    Resource(RequestInfo),
}

/// A request for objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    pub verb: Verb,
    pub resource: &'static Resource,
    pub subresource: Option<&'static Subresource>,
    /// Empty for the whole cluster.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
}

impl RequestInfo {
    /// `pods` or `pods/status`.
    pub fn full_resource(&self) -> String {
        match self.subresource {
            Some(sub) => format!("{}/{}", self.resource.plural, sub.name),
            None => self.resource.plural.to_owned(),
        }
    }

    pub fn namespace_option(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }
}

/// Why a path is not served.
#[derive(Debug, PartialEq, Eq)]
pub enum PathError {
    /// No such path.
    Unknown,
    /// Part of Kubernetes but not served here; named for the error message.
    NotServed(String),
    /// A kind that users have in their manifests.
    Unserved(&'static UnservedKind),
    MethodNotAllowed,
    BadName(String),
}

/// Groups that users may expect, so that the response can say that they are not served.
const KNOWN_GROUPS: [&str; 22] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "metrics.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Subresource whose path goes on as a path of the node.
const PROXY: &str = "proxy";

/// Parses method and path. `watching` is whether the query requests a watch.
pub fn parse(method: &Method, path: &str, watching: bool) -> Result<Target, PathError> {
    let mut segments = Vec::new();
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        segments.push(decode(segment).ok_or_else(|| PathError::BadName(segment.to_owned()))?);
    }
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["api"] => Ok(Target::CoreVersions),
        ["apis"] => Ok(Target::Groups),
        ["version"] => Ok(Target::Version),
        ["healthz" | "livez" | "readyz", ..] => Ok(Target::Health),
        ["openapi", rest @ ..] => {
            openapi::OpenApiPage::at(rest).map(Target::OpenApi).ok_or(PathError::Unknown)
        }
        ["api", version] => group_version("", version),
        ["apis", group] => group_of(group).map(Target::Group),
        ["apis", group, version] => group_version(group, version),
        ["api", version, rest @ ..] => resource(method, "", version, rest, watching),
        ["apis", group, version, rest @ ..] => resource(method, group, version, rest, watching),
        _ => Err(PathError::Unknown),
    }
}

fn group_of(group: &str) -> Result<&'static str, PathError> {
    let served = RESOURCES.iter().map(|resource| resource.group);
    let mut known = served.chain(UNSERVED.iter().map(|kind| kind.group));
    let found = known.find(|known| !known.is_empty() && *known == group);
    found.ok_or_else(|| absent_group(group))
}

fn group_version(group: &str, version: &str) -> Result<Target, PathError> {
    let served = RESOURCES.iter().map(|resource| (resource.group, resource.version));
    let mut known = served.chain(UNSERVED.iter().map(|kind| (kind.group, kind.version)));
    let found = known.find(|known| *known == (group, version));
    found
        .map(|(group, version)| Target::GroupVersion { group, version })
        .ok_or_else(|| absent_group(group))
}

fn absent_group(group: &str) -> PathError {
    if KNOWN_GROUPS.contains(&group) {
        PathError::NotServed(format!("the API group {group}"))
    } else {
        PathError::Unknown
    }
}

fn resource(
    method: &Method,
    group: &str,
    version: &str,
    rest: &[&str],
    watching: bool,
) -> Result<Target, PathError> {
    let served = RESOURCES.iter().any(|r| r.group == group && r.version == version);
    let (namespace, plural, rest) = match rest {
        // A namespace is an object, and also the first part of the path of the objects in it.
        ["namespaces", name, sub @ ("status" | "finalize")] if group.is_empty() => {
            ("", "namespaces", vec![*name, *sub])
        }
        ["namespaces", name] if group.is_empty() => ("", "namespaces", vec![*name]),
        ["namespaces", namespace, plural, rest @ ..] => (*namespace, *plural, rest.to_vec()),
        [plural, rest @ ..] => ("", *plural, rest.to_vec()),
        [] => return Err(PathError::Unknown),
    };
    let Some(resource) = registry::find(group, version, plural) else {
        if let Some(kind) = unserved::find(group, version, plural) {
            return Err(PathError::Unserved(kind));
        }
        return Err(match (served, KNOWN_GROUPS.contains(&group)) {
            (true, _) if group.is_empty() => PathError::NotServed(plural.to_owned()),
            (true, _) | (false, true) => PathError::NotServed(format!("{plural}.{group}")),
            (false, false) => PathError::Unknown,
        });
    };
    let (name, subresource) = match rest.as_slice() {
        [] => ("", None),
        [name] => (*name, None),
        [name, sub, rest @ ..] => {
            let found = resource.subresource(sub);
            let missing = || PathError::NotServed(format!("{plural}/{sub}"));
            let found = found.ok_or_else(missing)?;
            // Only a proxied path has more parts.
            if !rest.is_empty() && found.name != PROXY {
                return Err(PathError::Unknown);
            }
            (*name, Some(found))
        }
    };
    for part in [namespace, name] {
        if part == "." || part == ".." || part.contains(['/', '%']) {
            return Err(PathError::BadName(part.to_owned()));
        }
    }
    if !resource.namespaced && !namespace.is_empty() {
        return Err(PathError::Unknown);
    }
    if resource.namespaced && namespace.is_empty() && !name.is_empty() {
        return Err(PathError::Unknown);
    }
    // The query of a proxied request is not for this server.
    let watching = watching && subresource.is_none_or(|sub| sub.name != PROXY);
    let verb = verb(method, !name.is_empty(), watching).ok_or(PathError::MethodNotAllowed)?;
    if verb == Verb::Create && name.is_empty() != subresource.is_none() {
        return Err(PathError::MethodNotAllowed);
    }
    Ok(Target::Resource(RequestInfo {
        verb,
        resource,
        subresource,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}

fn verb(method: &Method, named: bool, watching: bool) -> Option<Verb> {
    match (method.as_str(), named) {
        ("GET" | "HEAD", false) if watching => Some(Verb::Watch),
        ("GET" | "HEAD", false) => Some(Verb::List),
        ("GET" | "HEAD", true) if watching => Some(Verb::Watch),
        ("GET" | "HEAD", true) => Some(Verb::Get),
        ("POST", _) => Some(Verb::Create),
        ("PUT", true) => Some(Verb::Update),
        ("PATCH", true) => Some(Verb::Patch),
        ("DELETE", true) => Some(Verb::Delete),
        ("DELETE", false) => Some(Verb::DeleteCollection),
        _ => None,
    }
}

/// Percent-decodes; `None` if the result is not UTF-8.
fn decode(segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return Some(segment.to_owned());
    }
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(method: &str, path: &str) -> String {
        let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
        match parse(&method, path, false) {
            Err(PathError::Unserved(kind)) => format!("Unserved({})", kind.kind),
            Ok(Target::Resource(info)) => {
                format!(
                    "{} {} ns={} name={}",
                    info.verb,
                    info.full_resource(),
                    info.namespace,
                    info.name
                )
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn paths_are_parsed() {
        for (method, path, want) in [
            ("GET", "/api", "CoreVersions"),
            ("GET", "/apis/", "Groups"),
            ("GET", "/api/v1", "GroupVersion { group: \"\", version: \"v1\" }"),
            ("GET", "/apis/node.k8s.io", "Group(\"node.k8s.io\")"),
            ("GET", "/api/v1/pods", "list pods ns= name="),
            ("GET", "/api/v1/namespaces/a/pods", "list pods ns=a name="),
            ("GET", "/api/v1/namespaces/a/pods/p", "get pods ns=a name=p"),
            ("POST", "/api/v1/namespaces/a/pods", "create pods ns=a name="),
            ("POST", "/api/v1/namespaces/a/pods/p", "MethodNotAllowed"),
            ("POST", "/api/v1/namespaces/a/pods/p/binding", "create pods/binding ns=a name=p"),
            ("PUT", "/api/v1/nodes/n/status", "update nodes/status ns= name=n"),
            ("GET", "/api/v1/nodes/n/proxy/metrics", "get nodes/proxy ns= name=n"),
            ("POST", "/api/v1/nodes/n/proxy/run/a/b", "create nodes/proxy ns= name=n"),
            (
                "DELETE",
                "/api/v1/nodes/https:n:10250/proxy/",
                "delete nodes/proxy ns= name=https:n:10250",
            ),
            ("GET", "/api/v1/nodes/n/status/more", "Unknown"),
            ("GET", "/api/v1/nodes/n/proxy/%ff", "BadName(\"%ff\")"),
            ("PATCH", "/api/v1/namespaces/a", "patch namespaces ns= name=a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update namespaces/finalize ns= name=a"),
            ("DELETE", "/api/v1/namespaces/a/secrets", "deletecollection secrets ns=a name="),
            ("PUT", "/api/v1/namespaces/a/secrets", "MethodNotAllowed"),
            (
                "GET",
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
                "get leases ns=kube-node-lease name=n",
            ),
            ("GET", "/api/v1/namespaces/a/pods/p%2Fq", "BadName(\"p/q\")"),
            ("GET", "/api/v1/namespaces/a/pods/%ff", "BadName(\"%ff\")"),
            ("GET", "/api/v1/namespaces/a/pods/..", "BadName(\"..\")"),
            ("GET", "/api/v1/pods/p", "Unknown"),
            ("GET", "/api/v1/namespaces/a/nodes/n", "Unknown"),
            ("GET", "/api/v1/replicationcontrollers", "Unserved(ReplicationController)"),
            ("GET", "/apis/apps/v1/namespaces/a/deployments", "Unserved(Deployment)"),
            ("PUT", "/apis/apps/v1/namespaces/a/deployments/d/scale", "Unserved(Deployment)"),
            ("GET", "/apis/apps/v1", "GroupVersion { group: \"apps\", version: \"v1\" }"),
            ("GET", "/apis/batch", "Group(\"batch\")"),
            ("GET", "/apis/apps/v1/controllerrevisions", "NotServed(\"controllerrevisions.apps\")"),
            ("GET", "/apis/apps/v1beta1/deployments", "NotServed(\"deployments.apps\")"),
            (
                "GET",
                "/apis/certificates.k8s.io/v1",
                "NotServed(\"the API group certificates.k8s.io\")",
            ),
            ("GET", "/apis/nope.example/v1", "Unknown"),
            ("GET", "/nope", "Unknown"),
        ] {
            assert_eq!(short(method, path), want, "{method} {path}");
        }
    }
}
