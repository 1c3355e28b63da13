//! Built-in objects that every cluster has from the start.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::document::Document;
use crate::object::Object;
use crate::registry::{
    CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES, Resource, SERVICE_ACCOUNTS, SERVICES,
};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Change, CommitError, Key, Precondition, WriteOp};
use crate::strategy;

const DEFAULT_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

pub(super) const ROOT_CA: &str = "kube-root-ca.crt";
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the \
    kube-apiserver when using internal endpoints such as the internal service IP or \
    kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
    clusters.";

impl ApiServer {
    pub(crate) async fn bootstrap(&self) -> Result<(), ApiError> {
        for name in DEFAULT_NAMESPACES {
            let mut namespace = built_in(self, json!({"metadata": {"name": name}}));
            strategy::prepare_create(&NAMESPACES, &mut namespace);
            self.insert_built_in(&NAMESPACES, namespace).await?;
            for (resource, object) in contents(self, name) {
                self.insert_built_in(resource, object).await?;
            }
        }
        for class in priority_classes() {
            let mut class = built_in(self, class);
            class.set_generation(1);
            self.insert_built_in(&PRIORITY_CLASSES, class).await?;
        }
        self.bootstrap_roles().await?;
        self.write_kubernetes_service().await
    }

    /// Writes the `kubernetes` service; its address may differ from the last start.
    async fn write_kubernetes_service(&self) -> Result<(), ApiError> {
        let key = Key::new(&SERVICES, "default", "kubernetes");
        let wanted = self.settings().service.map(|address| built_in(self, service_at(address)));
        let found = self.store().get(&key)?;
        let old = found.as_ref().map(|document| document.object(&SERVICES)).transpose()?;
        let same = |field| {
            old.as_ref().and_then(|old| old.get(field))
                == wanted.as_ref().and_then(|wanted| wanted.get(field))
        };
        if old.is_some() == wanted.is_some() && same("spec") {
            return Ok(());
        }
        let expect =
            found.map_or(Precondition::Absent, |document| Precondition::At(document.revision));
        let op = match (wanted, old) {
            (Some(wanted), _) => WriteOp::Put { text: Document::text(wanted), previous: None },
            (None, Some(old)) => WriteOp::Delete { last: Document::text(old) },
            (None, None) => return Ok(()),
        };
        match self.store().commit(vec![Change { key, expect, op }]).await {
            Ok(_) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Creates an object unless it exists.
    pub(super) async fn insert_built_in(
        &self,
        resource: &'static Resource,
        object: Object,
    ) -> Result<(), ApiError> {
        match self.store().commit(vec![creation(resource, object)]).await {
            Ok(_) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }
}

/// Service account and CA certificates of a namespace, written together with it.
pub(crate) fn namespace_contents(server: &ApiServer, namespace: &str) -> Vec<Change> {
    let contents = contents(server, namespace).into_iter();
    contents.map(|(resource, object)| creation(resource, object)).collect()
}

pub(super) fn contents(server: &ApiServer, namespace: &str) -> [(&'static Resource, Object); 2] {
    let account = json!({"metadata": {"name": "default", "namespace": namespace}});
    let certificates = json!({
        "metadata": {
            "name": ROOT_CA,
            "namespace": namespace,
            "annotations": {"kubernetes.io/description": ROOT_CA_DESCRIPTION},
        },
        "data": {"ca.crt": server.settings().root_ca},
    });
    [(&SERVICE_ACCOUNTS, built_in(server, account)), (&CONFIG_MAPS, built_in(server, certificates))]
}

pub(super) fn creation(resource: &Resource, object: Object) -> Change {
    Change {
        key: Key::new(resource, object.namespace(), object.name()),
        expect: Precondition::Absent,
        op: WriteOp::Put { text: Document::text(object), previous: None },
    }
}

/// Adds the metadata that every object has. The values given are JSON objects.
pub(super) fn built_in(server: &ApiServer, value: Value) -> Object {
    let mut object = Object::try_from(value).unwrap_or_default();
    object.set_meta("uid", Some(server.ids().uid().into()));
    object.set_meta("creationTimestamp", Some(rfc3339(server.now()).into()));
    object
}

fn priority_classes() -> [Value; 2] {
    [
        json!({
            "metadata": {"name": "system-node-critical"},
            "value": 2_000_001_000,
            "description": "Used for system critical pods that must not be moved from their current node.",
            "preemptionPolicy": "PreemptLowerPriority",
        }),
        json!({
            "metadata": {"name": "system-cluster-critical"},
            "value": 2_000_000_000,
            "description": "Used for system critical pods that must run in the cluster, but can be moved to another \
                            node if necessary.",
            "preemptionPolicy": "PreemptLowerPriority",
        }),
    ]
}

/// The `kubernetes` service. Nothing translates the address, so it is the real one.
fn service_at(address: SocketAddr) -> Value {
    let ip = address.ip().to_string();
    json!({
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "ports": [{"name": "https", "protocol": "TCP", "port": address.port(), "targetPort": address.port()}],
            "clusterIP": ip,
            "clusterIPs": [ip],
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "ipFamilies": [if address.is_ipv4() { "IPv4" } else { "IPv6" }],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    })
}
