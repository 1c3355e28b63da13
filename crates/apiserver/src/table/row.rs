//! Table rows of every kind but pods.

use std::collections::BTreeSet;

use jiff::Timestamp;
use podwright_api::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::duration::since;
use super::{age, list, or, text};

type Cells = Vec<Value>;

const STORAGE_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn count(object: &Value, pointer: &str) -> usize {
    object.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len)
}

pub(super) fn plain(object: &Value, now: Timestamp) -> Cells {
    vec![json!(name(object)), json!(age(object, now))]
}

/// Usage of a pod or node; of a pod that of all its containers.
pub(super) fn measured(object: &Value) -> Cells {
    let containers = list(object, "/containers").iter();
    let usages: Vec<&Value> = match object.get("usage") {
        Some(usage) => vec![usage],
        None => containers.filter_map(|container| container.get("usage")).collect(),
    };
    let sum = |what: &str| -> Quantity {
        let each = usages.iter().filter_map(|usage| usage.get(what)?.as_str()?.parse().ok());
        each.sum()
    };
    let window = text(object, "/window");
    vec![
        json!(name(object)),
        json!(sum("cpu").to_string()),
        json!(sum("memory").to_string()),
        json!(window),
    ]
}

pub(super) fn node(object: &Value, now: Timestamp) -> Cells {
    let mut status = Vec::new();
    let ready = list(object, "/status/conditions").iter().rfind(|it| text(it, "/type") == "Ready");
    status.push(match ready.map(|condition| text(condition, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    });
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push("SchedulingDisabled");
    }
    let address = |kind: &str| {
        let mut all = list(object, "/status/addresses").iter();
        all.find(|it| text(it, "/type") == kind).map_or("<none>", |it| text(it, "/address"))
    };
    let info = |field: &str| text(object, &format!("/status/nodeInfo/{field}")).to_owned();
    let mut kernel = or(&info("kernelVersion"), "<unknown>").to_owned();
    let architecture = info("architecture");
    if !architecture.is_empty() {
        kernel = format!("{kernel} ({architecture})");
    }
    vec![
        json!(name(object)),
        json!(status.join(",")),
        json!(or(&roles(object), "<none>")),
        json!(age(object, now)),
        json!(info("kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(or(&info("osImage"), "<unknown>")),
        json!(kernel),
        json!(or(&info("containerRuntimeVersion"), "<unknown>")),
    ]
}

fn roles(node: &Value) -> String {
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let role = |(key, value): (&String, &Value)| match key.strip_prefix("node-role.kubernetes.io/")
    {
        Some(role) => Some(role.to_owned()),
        None if key == "kubernetes.io/role" => value.as_str().map(str::to_owned),
        None => None,
    };
    let roles: BTreeSet<String> = labels.into_iter().flat_map(Map::iter).filter_map(role).collect();
    let named: Vec<String> = roles.into_iter().filter(|role| !role.is_empty()).collect();
    named.join(",")
}

pub(super) fn namespace(object: &Value, now: Timestamp) -> Cells {
    vec![json!(name(object)), json!(text(object, "/status/phase")), json!(age(object, now))]
}

pub(super) fn config_map(object: &Value, now: Timestamp) -> Cells {
    let entries = count(object, "/data") + count(object, "/binaryData");
    vec![json!(name(object)), json!(entries), json!(age(object, now))]
}

pub(super) fn secret(object: &Value, now: Timestamp) -> Cells {
    vec![
        json!(name(object)),
        json!(text(object, "/type")),
        json!(count(object, "/data")),
        json!(age(object, now)),
    ]
}

/// Fields have their name in the older API, or else that in the newer.
pub(super) fn event(object: &Value, now: Timestamp) -> Cells {
    let either = |old: &str, new: &str| or(text(object, old), text(object, new)).to_owned();
    let first = either("/firstTimestamp", "/deprecatedFirstTimestamp");
    let first = since(or(&first, text(object, "/eventTime")), now);
    let last = either("/lastTimestamp", "/deprecatedLastTimestamp");
    let mut last = if last.is_empty() { first.clone() } else { since(&last, now) };
    let counted = object.get("count").or_else(|| object.get("deprecatedCount"));
    let mut count = counted.and_then(Value::as_i64).filter(|count| *count != 0).unwrap_or(1);
    if let Some(series) = object.get("series").filter(|series| series.is_object()) {
        last = since(text(series, "/lastObservedTime"), now);
        count = series.get("count").and_then(Value::as_i64).unwrap_or(0);
    }
    let kind = either("/involvedObject/kind", "/regarding/kind").to_lowercase();
    let target = match either("/involvedObject/name", "/regarding/name").as_str() {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = either("/source/component", "/deprecatedSource/component");
    let component = if component.is_empty() {
        either("/reportingComponent", "/reportingController")
    } else {
        component
    };
    let host = either("/source/host", "/deprecatedSource/host");
    let host = if host.is_empty() { text(object, "/reportingInstance").to_owned() } else { host };
    let source = if host.is_empty() { component } else { format!("{component}, {host}") };
    vec![
        json!(last),
        json!(text(object, "/type")),
        json!(text(object, "/reason")),
        json!(target),
        json!(either("/involvedObject/fieldPath", "/regarding/fieldPath")),
        json!(source),
        json!(either("/message", "/note").trim()),
        json!(first),
        json!(count),
        json!(name(object)),
    ]
}

pub(super) fn lease(object: &Value, now: Timestamp) -> Cells {
    vec![json!(name(object)), json!(text(object, "/spec/holderIdentity")), json!(age(object, now))]
}

pub(super) fn runtime_class(object: &Value, now: Timestamp) -> Cells {
    vec![json!(name(object)), json!(text(object, "/handler")), json!(age(object, now))]
}

pub(super) fn priority_class(object: &Value, now: Timestamp) -> Cells {
    vec![
        json!(name(object)),
        json!(object.get("value").and_then(Value::as_i64).unwrap_or(0)),
        json!(object.get("globalDefault").and_then(Value::as_bool).unwrap_or(false)),
        json!(age(object, now)),
        json!(text(object, "/preemptionPolicy")),
    ]
}

/// Abbreviations of access modes, in the usual order.
fn access_modes(object: &Value, pointer: &str) -> String {
    let held = |mode: &str| list(object, pointer).iter().any(|it| it == mode);
    let modes = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let short: Vec<&str> =
        modes.into_iter().filter(|(mode, _)| held(mode)).map(|(_, short)| short).collect();
    short.join(",")
}

fn phase(object: &Value) -> &str {
    if text(object, "/metadata/deletionTimestamp").is_empty() {
        text(object, "/status/phase")
    } else {
        "Terminating"
    }
}

fn storage_class(object: &Value) -> &str {
    or(text(object, STORAGE_CLASS), text(object, "/spec/storageClassName"))
}

fn or_unset<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("<unset>")
}

pub(super) fn volume(object: &Value, now: Timestamp) -> Cells {
    let claim = match object.pointer("/spec/claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
        None => String::new(),
    };
    vec![
        json!(name(object)),
        json!(or(text(object, "/spec/capacity/storage"), "0")),
        json!(access_modes(object, "/spec/accessModes")),
        json!(text(object, "/spec/persistentVolumeReclaimPolicy")),
        json!(phase(object)),
        json!(claim),
        json!(storage_class(object)),
        json!(or_unset(object, "/spec/volumeAttributesClassName")),
        json!(text(object, "/status/reason")),
        json!(age(object, now)),
        json!(or_unset(object, "/spec/volumeMode")),
    ]
}

pub(super) fn claim(object: &Value, now: Timestamp) -> Cells {
    let volume = text(object, "/spec/volumeName");
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (
            or(text(object, "/status/capacity/storage"), "0"),
            access_modes(object, "/status/accessModes"),
        ),
    };
    vec![
        json!(name(object)),
        json!(phase(object)),
        json!(volume),
        json!(capacity),
        json!(modes),
        json!(storage_class(object)),
        json!(or_unset(object, "/spec/volumeAttributesClassName")),
        json!(age(object, now)),
        json!(or_unset(object, "/spec/volumeMode")),
    ]
}

pub(super) fn role(object: &Value) -> Cells {
    vec![json!(name(object)), json!(text(object, "/metadata/creationTimestamp"))]
}

pub(super) fn binding(object: &Value, now: Timestamp) -> Cells {
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let of = |kind: &str| {
        let subjects = list(object, "/subjects").iter();
        let names = subjects.filter(|it| text(it, "/kind") == kind).map(|it| match kind {
            "ServiceAccount" => format!("{}/{}", text(it, "/namespace"), text(it, "/name")),
            _ => text(it, "/name").to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    vec![
        json!(name(object)),
        json!(role),
        json!(age(object, now)),
        json!(of("User")),
        json!(of("Group")),
        json!(of("ServiceAccount")),
    ]
}

pub(super) fn service(object: &Value, now: Timestamp) -> Cells {
    let kind = text(object, "/spec/type");
    let cluster_ip = list(object, "/spec/clusterIPs").first().and_then(Value::as_str);
    let ports: Vec<String> = list(object, "/spec/ports").iter().map(port).collect();
    let selector = object.pointer("/spec/selector").and_then(Value::as_object);
    let selector: Vec<String> = selector
        .into_iter()
        .flat_map(Map::iter)
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    vec![
        json!(name(object)),
        json!(kind),
        json!(cluster_ip.unwrap_or("<none>")),
        json!(external_ips(object, kind)),
        json!(or(&ports.join(","), "<none>")),
        json!(age(object, now)),
        json!(or(&selector.join(","), "<none>")),
    ]
}

fn port(port: &Value) -> String {
    let number = |field: &str| port.get(field).and_then(Value::as_i64).unwrap_or(0);
    let protocol = text(port, "/protocol");
    match number("nodePort") {
        0 => format!("{}/{protocol}", number("port")),
        node => format!("{}:{node}/{protocol}", number("port")),
    }
}

fn external_ips(service: &Value, kind: &str) -> String {
    let given: Vec<&str> =
        list(service, "/spec/externalIPs").iter().filter_map(Value::as_str).collect();
    match kind {
        "ClusterIP" | "NodePort" => or(&given.join(","), "<none>").to_owned(),
        "LoadBalancer" => {
            let ingress = list(service, "/status/loadBalancer/ingress");
            let address = |it| or(text(it, "/ip"), text(it, "/hostname"));
            let mut all: BTreeSet<&str> = ingress.iter().map(address).collect();
            all.remove("");
            let all: Vec<&str> = all.into_iter().chain(given).collect();
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}
