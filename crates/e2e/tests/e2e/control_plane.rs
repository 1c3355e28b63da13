//! Control plane of a bed: it authorizes like a real cluster.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, ServiceAccount};
use kube::api::{Api, ListParams, Patch, PostParams};
use podwright_e2e::audit::AuditedRequest;
use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl;
use podwright_e2e::wait;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;

use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);

#[tokio::test]
async fn node_may_read_itself_but_nothing_that_is_not_its_own() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let admin = bed.client().await.unwrap();
    let nodes = Api::<Node>::all(admin.clone());
    for name in ["node-1", "node-2"] {
        let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let secretive = json!({ "metadata": { "name": "settings" }, "data": { "a": "b" } });
    let maps = Api::<ConfigMap>::default_namespaced(admin);
    maps.create(&PostParams::default(), &serde_json::from_value(secretive).unwrap()).await.unwrap();

    let plane = bed.control_plane().unwrap();
    let node = plane.client(&plane.node_kubeconfig("node-1").unwrap()).await.unwrap();
    let seen = Api::<Node>::all(node.clone()).get("node-1").await.unwrap();
    assert_eq!(seen.metadata.name.as_deref(), Some("node-1"));

    // then it can neither change another node nor read an object that none of its pods uses
    let other = json!({ "metadata": { "labels": { "mine": "now" } } });
    let patch = Patch::Merge(other);
    let changed = Api::<Node>::all(node.clone());
    let changed = changed.patch("node-2", &Default::default(), &patch).await;
    let read = Api::<ConfigMap>::default_namespaced(node.clone()).get("settings").await.map(drop);
    let every = Api::<Secret>::default_namespaced(node).list(&ListParams::default()).await;
    for refused in [changed.map(drop), read, every.map(drop)] {
        let Err(kube::Error::Api(status)) = refused else { panic!("allowed: {refused:?}") };
        assert_eq!(status.code, 403, "{status:?}");
    }
    bed.close().unwrap();
}

#[tokio::test]
async fn audit_log_contains_requests_and_every_kubectl_works() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    for release in kubectl::Release::ALL {
        let kubectl = bed.kubectl(release).unwrap();
        let accounts = kubectl.run(&["get", "serviceaccounts", "--output=name"]).await.unwrap();
        assert_eq!(accounts.trim(), "serviceaccount/default", "{release:?}");
    }
    let plane = bed.control_plane().unwrap();
    let listed = async || {
        let mut requests = plane.audit()?.into_iter();
        Ok(requests.any(|request| {
            request.user == "kubernetes-admin"
                && request.verb == "list"
                && request.resource == "serviceaccounts"
                && request.status.is_success()
        }))
    };
    wait::until_true("the audit log", LIMIT, listed).await.unwrap();
    bed.close().unwrap();
}

#[tokio::test]
async fn restarted_api_server_keeps_its_objects() {
    needs_root!();
    let mut bed = Bed::builder().control_plane().start().await.unwrap();
    let client = bed.client().await.unwrap();
    let maps = Api::<ConfigMap>::default_namespaced(client);
    let map = serde_json::from_value(json!({ "metadata": { "name": "kept" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();

    bed.control_plane().unwrap().kill_apiserver().await.unwrap();
    assert!(maps.get("kept").await.is_err());
    bed.control_plane_mut().unwrap().restart_apiserver().await.unwrap();
    maps.get("kept").await.unwrap();
    bed.close().unwrap();
}

/// Control planes are reused, so the second bed most likely gets the first one's.
#[tokio::test]
async fn changes_of_one_bed_are_not_visible_to_the_next() {
    needs_root!();
    for time in ["the first bed", "the next bed"] {
        let bed = Bed::builder().control_plane().start().await.unwrap();
        let client = bed.client().await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let mut names: Vec<_> = namespaces.list(&ListParams::default()).await.unwrap().items;
        names.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let names: Vec<_> = names.into_iter().filter_map(|n| n.metadata.name).collect();
        assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"], "{time}");
        let pods: Api<Pod> = Api::all(client.clone());
        assert_eq!(pods.list(&ListParams::default()).await.unwrap().items, [], "{time}");
        let nodes: Api<Node> = Api::all(client.clone());
        assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items, [], "{time}");
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        let account = accounts.get("default").await.unwrap();
        assert_eq!(account.image_pull_secrets, None, "{time}");
        let plane = bed.control_plane().unwrap();
        // Controllers may still be processing its removal.
        let ours = |a: &&AuditedRequest| a.user == "kubernetes-admin" && a.namespace == "shop";
        assert_eq!(plane.audit().unwrap().iter().find(ours), None, "{time}");

        plane.create_namespace("shop").await.unwrap();
        let changed = Patch::Merge(json!({ "imagePullSecrets": [{ "name": "key" }] }));
        accounts.patch("default", &Default::default(), &changed).await.unwrap();
        let node = json!({ "metadata": { "name": "node-1" } });
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let pod = json!({
            "metadata": { "name": "web", "finalizers": ["shop.example/never"] },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "a", "image": "a" }] },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let pods: Api<Pod> = Api::namespaced(client, "shop");
        pods.create(&PostParams::default(), &pod).await.unwrap();
        bed.close().unwrap();
    }
}

/// The certificate request that a kubelet sends at its first start.
fn request_for(node: &str) -> CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    serde_json::from_value(json!({
        "metadata": { "generateName": "csr-" },
        "spec": {
            "request": ByteString(request.pem().unwrap().into_bytes()),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "key encipherment", "client auth"],
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn bootstrap_token_gets_a_certificate_for_a_node_and_nothing_else() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let plane = bed.control_plane().unwrap();
    let newcomer = plane.client(&plane.bootstrap_kubeconfig().unwrap()).await.unwrap();
    let nodes = Api::<Node>::all(newcomer.clone());
    let Err(kube::Error::Api(refused)) = nodes.list(&Default::default()).await else {
        panic!("a bootstrap token may list nodes");
    };
    assert_eq!(refused.code, 403);

    let requests = Api::<CertificateSigningRequest>::all(newcomer);
    let made = requests.create(&PostParams::default(), &request_for("node-1")).await.unwrap();
    let name = made.metadata.name.unwrap();
    let certificate = async || {
        let status = requests.get(&name).await?.status;
        Ok(status.and_then(|status| status.certificate))
    };
    let certificate = wait::until("the certificate", LIMIT, certificate).await.unwrap();
    assert!(certificate.0.starts_with(b"-----BEGIN CERTIFICATE-----"));
    bed.close().unwrap();
}
