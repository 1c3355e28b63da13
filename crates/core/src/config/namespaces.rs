//! Kernel namespaces of a pod.

use podwright_proto::cri;
use podwright_proto::cri::NamespaceMode;

use super::error::ConfigError;
use super::facts::{NodeFacts, PodProvision};
use crate::pod::Pod;

/// Whether the pod uses a user namespace, for which an id range has to be allocated.
pub fn wants_own_users(pod: &Pod) -> bool {
    pod.object.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

/// For the sandbox and for each container.
pub fn of_pod(
    pod: &Pod,
    provision: &PodProvision,
    facts: &NodeFacts,
) -> Result<cri::NamespaceOption, ConfigError> {
    let spec = pod.object.spec.as_ref();
    let node_if = |on: Option<bool>, otherwise| match on {
        Some(true) => NamespaceMode::Node,
        Some(false) | None => otherwise,
    };
    let shared = spec.and_then(|spec| spec.share_process_namespace).unwrap_or(false);
    let own_pid = if shared { NamespaceMode::Pod } else { NamespaceMode::Container };
    Ok(cri::NamespaceOption {
        network: node_if(Some(pod.host_network), NamespaceMode::Pod).into(),
        pid: node_if(spec.and_then(|spec| spec.host_pid), own_pid).into(),
        ipc: node_if(spec.and_then(|spec| spec.host_ipc), NamespaceMode::Pod).into(),
        target_id: String::new(),
        userns_options: Some(users(pod, provision, facts)?),
    })
}

fn users(
    pod: &Pod,
    provision: &PodProvision,
    facts: &NodeFacts,
) -> Result<cri::UserNamespace, ConfigError> {
    if !wants_own_users(pod) {
        return Ok(cri::UserNamespace { mode: NamespaceMode::Node.into(), ..Default::default() });
    }
    let handler = provision.runtime_handler.as_str();
    let refuse = |why: String| {
        let subject = match handler {
            "" => "runtime".to_owned(),
            handler => format!("RuntimeClass handler {handler:?}"),
        };
        Err(ConfigError::NoUserNamespaces { subject, why })
    };
    match facts.supports_user_namespaces(handler) {
        Some(true) => {}
        Some(false) => return refuse(String::new()),
        None => return refuse(format!(": the handler {handler:?} is not known")),
    }
    let mappings = provision.id_mappings.clone().ok_or(ConfigError::NoIdMappings)?;
    Ok(cri::UserNamespace {
        mode: NamespaceMode::Pod.into(),
        uids: mappings.uids,
        gids: mappings.gids,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::facts::IdMappings;
    use super::super::sample;
    use super::*;

    #[test]
    fn pod_has_its_own_namespaces_unless_it_shares_the_hosts() {
        use NamespaceMode::{Container, Node, Pod};
        for (spec, network, pid, ipc) in [
            (json!({}), Pod, Container, Pod),
            (json!({"shareProcessNamespace": true}), Pod, Pod, Pod),
            (json!({"hostPID": true, "shareProcessNamespace": true}), Pod, Node, Pod),
            (json!({"hostNetwork": true}), Node, Container, Pod),
            (json!({"hostIPC": true, "hostUsers": true}), Pod, Container, Node),
        ] {
            let pod = sample::pod(spec);
            let got = of_pod(&pod, &PodProvision::default(), &sample::facts()).unwrap();
            let users = got.userns_options.clone().unwrap();
            assert_eq!(
                (got.network(), got.pid(), got.ipc(), users.mode()),
                (network, pid, ipc, Node)
            );
        }
    }

    #[test]
    fn user_namespace_requires_handler_support_and_an_id_range() {
        let handler = |name: &str, user_namespaces| cri::RuntimeHandler {
            name: name.to_owned(),
            features: Some(cri::RuntimeHandlerFeatures { user_namespaces, ..Default::default() }),
        };
        let block = cri::IdMapping { host_id: 65536, container_id: 0, length: 65536 };
        let range = Some(IdMappings { uids: vec![block], gids: vec![block] });
        let pod = sample::pod(json!({"hostUsers": false}));
        let try_it = |handlers: Vec<cri::RuntimeHandler>, runtime_handler: &str, id_mappings| {
            let facts = NodeFacts { handlers, ..sample::facts() };
            let runtime_handler = runtime_handler.to_owned();
            let provision = PodProvision { runtime_handler, id_mappings, ..Default::default() };
            let users = of_pod(&pod, &provision, &facts).map(|got| got.userns_options.unwrap());
            users.map_err(|error| error.to_string())
        };
        let got = try_it(vec![handler("", true)], "", range.clone()).unwrap();
        assert_eq!(
            (got.mode(), got.uids, got.gids),
            (NamespaceMode::Pod, vec![block], vec![block])
        );
        let unable = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        for (handlers, name, range, want) in [
            (vec![], "", range.clone(), unable.to_owned()),
            (vec![handler("", false)], "", range.clone(), unable.to_owned()),
            (
                vec![handler("kata", false)],
                "kata",
                range.clone(),
                "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support \
                 user namespaces"
                    .to_owned(),
            ),
            (
                vec![handler("kata", true)],
                "",
                range,
                format!("{unable}: the handler \"\" is not known"),
            ),
            (
                vec![handler("", true)],
                "",
                None,
                "create user namespace: no range of ids has been set aside for the pod".to_owned(),
            ),
        ] {
            assert_eq!(try_it(handlers, name, range), Err(want));
        }
    }
}
