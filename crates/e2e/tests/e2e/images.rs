//! Image pulls from a registry with authentication.

use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use podwright_e2e::bed::Bed;
use podwright_e2e::registry::Registry;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::needs_root;

const LOGIN: Option<(&str, &str)> = Some(("me", "a secret"));

fn wanting(name: &str, image: &str, policy: &str, secret: Option<&str>) -> Value {
    let mut pod = pod(name, &["serve"]);
    pod["spec"]["containers"][0]["image"] = json!(image);
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
    if let Some(secret) = secret {
        pod["spec"]["imagePullSecrets"] = json!([{ "name": secret }]);
    }
    pod
}

async fn add_secret(cluster: &Cluster, name: &str, config: &Value) {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": config.to_string() },
    }))
    .unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    secrets.create(&PostParams::default(), &secret).await.unwrap();
}

fn waits_for(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |status| status["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
}

#[tokio::test]
async fn pull_secret_grants_access_only_to_pods_that_have_it() {
    needs_root!();
    let cluster = Cluster::start().await;
    let registry = Registry::start(&cluster.bed, LOGIN).await.unwrap();
    let image = registry.image("team/app:1");
    add_secret(&cluster, "right", &registry.docker_config("me", "a secret")).await;
    add_secret(&cluster, "wrong", &registry.docker_config("me", "a guess")).await;

    cluster.create(wanting("guest", &image, "IfNotPresent", None)).await;
    let back_off = waits_for("ImagePullBackOff");
    let refused = cluster.until("guest", "refused", back_off).await;
    let status = serde_json::to_value(refused.status).unwrap();
    let message = &status["containerStatuses"][0]["state"]["waiting"]["message"];
    let want = format!("Back-off pulling image {image:?}: ErrImagePull: ");
    assert!(message.as_str().unwrap().starts_with(&want), "{message}");
    cluster.create(wanting("guesser", &image, "IfNotPresent", Some("wrong"))).await;
    cluster.until("guesser", "refused", waits_for("ImagePullBackOff")).await;
    assert_eq!(registry.visits().0, 0);

    cluster.create(wanting("owner", &image, "IfNotPresent", Some("right"))).await;
    cluster.until("owner", "ready", ready).await;
    let served = registry.visits().0;
    assert!(served > 0);

    // The image is on the node now; a pod without credentials for it may not use it.
    cluster.create(wanting("thief", &image, "Never", None)).await;
    cluster.until("thief", "not found", waits_for("ErrImageNeverPull")).await;
    let before = registry.visits().1;
    cluster.create(wanting("burglar", &image, "IfNotPresent", None)).await;
    cluster.until("burglar", "refused", waits_for("ImagePullBackOff")).await;
    assert!(registry.visits().1 > before, "the registry was contacted again");
    cluster.create(wanting("family", &image, "Never", Some("right"))).await;
    cluster.until("family", "ready", ready).await;
    assert_eq!(registry.visits().0, served, "with credentials, nothing is pulled again");

    cluster.create(wanting("forgetful", &image, "IfNotPresent", Some("lost"))).await;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let reported = async || {
        let list = events.list(&ListParams::default()).await?;
        let reasons: Vec<String> = list.items.into_iter().filter_map(|e| e.reason).collect();
        let wanted = ["Pulling", "Pulled", "BackOff", "FailedToRetrieveImagePullSecret"];
        Ok(wanted.iter().all(|reason| reasons.iter().any(|r| r == reason)))
    };
    wait::until_true("its events", LIMIT, reported).await.unwrap();
    drop(registry);
    cluster.close();
}

#[tokio::test]
async fn node_docker_configuration_is_used_for_static_pods() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let registry = Registry::start(&bed, LOGIN).await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    let config = registry.docker_config("me", "a secret");
    std::fs::write(agent.root_dir().join("config.json"), config.to_string()).unwrap();
    agent.healthy().await.unwrap();
    let image = registry.image("team/app:1");
    agent.add_manifest("web", &wanting("web", &image, "Always", None)).unwrap();
    let cri = bed.cri().await.unwrap();
    let running = async || Ok(cri.containers().await?.iter().any(|c| c.state == 1));
    wait::until_true("the container to run", LIMIT, running).await.unwrap();
    assert_eq!(registry.visits().0, 1, "prefetched once, and not pulled again");
    let records = std::fs::read_dir(agent.root_dir().join("image_manager/pulled")).unwrap();
    let record = std::fs::read_to_string(records.flatten().next().unwrap().path()).unwrap();
    assert!(record.contains("\"nodePodsAccessible\":true"), "{record}");
    drop((agent, registry));
    bed.close().unwrap();
}

#[tokio::test]
async fn runtime_class_selects_the_handler_and_a_missing_one_is_reported() {
    needs_root!();
    let cluster = Cluster::start().await;
    let class: k8s_openapi::api::node::v1::RuntimeClass =
        serde_json::from_value(json!({ "metadata": { "name": "special" }, "handler": "other" }))
            .unwrap();
    Api::all(cluster.client.clone()).create(&PostParams::default(), &class).await.unwrap();
    let with_class = |name: &str, class: &str| {
        let mut pod = pod(name, &["serve"]);
        pod["spec"]["runtimeClassName"] = json!(class);
        pod
    };
    cluster.create(with_class("classy", "special")).await;
    cluster.until("classy", "ready", ready).await;
    let cri = cluster.bed.cri().await.unwrap();
    let sandboxes = cri.sandboxes().await.unwrap();
    assert_eq!(sandboxes[0].runtime_handler, "other");

    // The API server only admits known classes; this one is deleted before its pod starts.
    let classes: Api<k8s_openapi::api::node::v1::RuntimeClass> = Api::all(cluster.client.clone());
    let brief = json!({ "metadata": { "name": "brief" }, "handler": "other" });
    let brief = serde_json::from_value(brief).unwrap();
    classes.create(&PostParams::default(), &brief).await.unwrap();
    let mut held = with_class("unlucky", "brief");
    held["metadata"]["annotations"] = json!({ "podwright/hold": "until the class is gone" });
    cluster.create(held).await;
    cluster.until("unlucky", "held", waits_for("Blocked")).await;
    classes.delete("brief", &DeleteParams::default()).await.unwrap();
    let release = json!({ "metadata": { "annotations": { "podwright/hold": null } } });
    let patch = kube::api::Patch::Merge(release);
    cluster.pods().patch("unlucky", &Default::default(), &patch).await.unwrap();
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let reported = async || {
        let list = events.list(&ListParams::default()).await?;
        let want = "Failed to create pod sandbox: runtimeclass.node.k8s.io \"brief\" not found";
        Ok(list.items.iter().any(|event| event.message.as_deref() == Some(want)))
    };
    wait::until_true("the event about the missing class", LIMIT, reported).await.unwrap();
    cluster.close();
}
