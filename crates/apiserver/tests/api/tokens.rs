use std::time::Duration;

use serde_json::{Value, json};

use super::test_server::{NS, TestServer};

const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

async fn token(test_server: &TestServer, spec: Value) -> String {
    let response = test_server.post(TOKEN, json!({"spec": spec})).await.ok();
    assert_eq!(response.code, 201);
    let account = test_server.get(TOKEN.trim_end_matches("/token")).await.ok();
    assert_eq!(response.body["metadata"]["uid"], account.body["metadata"]["uid"]);
    response.body["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn token_is_valid_for_its_account_its_pod_and_its_lifetime() {
    let test_server = TestServer::new().await;
    let created = test_server.pod("p", "n1").await;
    let uid = created.body["metadata"]["uid"].clone();
    let bound = json!({"expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid}});
    let pods = token(&test_server, bound.clone()).await;
    let accounts = token(&test_server, json!({})).await;
    let identity = test_server.server.identify(&pods, &[]).unwrap();
    assert_eq!(identity.user, "system:serviceaccount:default:default");
    assert_eq!(
        identity.groups,
        ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    );
    assert_eq!(
        test_server.server.identify(&pods, &["https://elsewhere"]),
        None,
        "for another audience"
    );
    // ten minutes later
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(test_server.server.identify(&pods, &[]), None, "expired");
    assert!(test_server.server.identify(&accounts, &[]).is_some());
    // with its pod
    let pods = token(&test_server, bound).await;
    test_server.delete(&format!("{NS}/pods/p?gracePeriodSeconds=0")).await.ok();
    assert_eq!(test_server.server.identify(&pods, &[]), None, "its pod is gone");
    test_server.pod("p", "n1").await;
    assert_eq!(test_server.server.identify(&pods, &[]), None, "another pod of its name");
    // with its account
    test_server.delete(&format!("{NS}/serviceaccounts/default")).await.ok();
    assert_eq!(test_server.server.identify(&accounts, &[]), None, "its account is gone");
}

/// An account that may edit itself could outlive its deletion with a finalizer.
#[tokio::test(start_paused = true)]
async fn finalizer_does_not_keep_the_token_of_a_deleted_account_valid() {
    let test_server = TestServer::new().await;
    let account = format!("{NS}/serviceaccounts/default");
    let pod = test_server.pod("p", "n1").await.body["metadata"]["uid"].clone();
    let of_account = token(&test_server, json!({})).await;
    let reference = json!({"kind": "Pod", "name": "p", "uid": pod});
    let of_pod = token(&test_server, json!({"boundObjectRef": reference})).await;
    let finalizers = json!({"metadata": {"finalizers": ["example.com/mine"]}});
    for (path, token) in [(format!("{NS}/pods/p"), &of_pod), (account, &of_account)] {
        test_server.merge(&path, finalizers.clone()).await.ok();
        test_server.delete(&path).await.ok();
        test_server.get(&path).await.ok();
        assert!(test_server.server.identify(token, &[]).is_some(), "{path}: until it has ended");
        tokio::time::advance(Duration::from_secs(95)).await;
        assert_eq!(test_server.server.identify(token, &[]), None, "{path}: it was to be gone");
    }
}

#[tokio::test(start_paused = true)]
async fn forged_token_is_refused() {
    let test_server = TestServer::new().await;
    let good = token(&test_server, json!({})).await;
    let parts: Vec<&str> = good.split('.').collect();
    let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", parts[1]);
    let forged = [
        "x".to_owned(),
        "..".to_owned(),
        unsigned,
        format!("{}.{}.{}", parts[0], parts[1], parts[2].chars().rev().collect::<String>()),
        format!("{}.{}A.{}", parts[0], parts[1], parts[2]),
        format!("{}.{}", parts[0], parts[1]),
    ];
    for token in forged {
        assert_eq!(test_server.server.identify(&token, &[]), None, "{token}");
        let review = json!({"spec": {"token": token}});
        let response =
            test_server.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.ok();
        assert_eq!(response.body["status"], json!({"user": {}, "error": "invalid bearer token"}));
    }
    let review = json!({"spec": {"token": good}});
    let response =
        test_server.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.ok();
    assert_eq!(
        response.body["status"]["user"]["username"],
        "system:serviceaccount:default:default"
    );
}

#[tokio::test(start_paused = true)]
async fn token_cannot_be_bound_to_a_missing_object() {
    let test_server = TestServer::new().await;
    let mut other = super::test_server::pod("p", "n1");
    test_server
        .post(&format!("{NS}/serviceaccounts"), json!({"metadata": {"name": "other"}}))
        .await
        .ok();
    other["spec"]["serviceAccountName"] = json!("other");
    test_server.post(&format!("{NS}/pods"), other).await.ok();
    for (case, spec, code) in [
        ("too short", json!({"expirationSeconds": 5}), 422),
        ("too long", json!({"expirationSeconds": 1_u64 << 33}), 422),
        ("no such pod", json!({"boundObjectRef": {"kind": "Pod", "name": "none"}}), 404),
        ("another's pod", json!({"boundObjectRef": {"kind": "Pod", "name": "p"}}), 400),
        ("no such kind", json!({"boundObjectRef": {"kind": "Lease", "name": "x"}}), 400),
        ("no such node", json!({"boundObjectRef": {"kind": "Node", "name": "x"}}), 404),
    ] {
        assert_eq!(test_server.post(TOKEN, json!({"spec": spec})).await.code, code, "{case}");
    }
    let path = format!("{NS}/serviceaccounts/other/token");
    let spec = json!({"boundObjectRef": {"kind": "Pod", "name": "p", "uid": "another"}});
    assert_eq!(test_server.post(&path, json!({"spec": spec})).await.code, 409);
}

#[tokio::test(start_paused = true)]
async fn token_review_reports_the_audiences() {
    const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    const SERVER: &str = "https://kubernetes.default.svc.cluster.local";
    let test_server = TestServer::new().await;
    test_server.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.ok();
    let pod = test_server.pod("p", "n1").await.body["metadata"]["uid"].clone();
    let bound = json!({"kind": "Pod", "name": "p", "uid": pod});
    let spec =
        json!({"audiences": ["vault", "mail"], "boundObjectRef": bound, "expirationSeconds": 600});
    let theirs = token(&test_server, spec).await;
    let ours = token(&test_server, json!({})).await;
    let refused = |given: &str, wanted: &str| {
        let error = format!(
            "[invalid bearer token, token audiences {given} is invalid for the target audiences {wanted}]"
        );
        json!({"user": {}, "error": error})
    };
    for (case, token, asked, want) in [
        ("one of two", &theirs, json!(["mail", "else"]), Ok(json!(["mail"]))),
        ("both", &theirs, json!(["mail", "vault"]), Ok(json!(["vault", "mail"]))),
        ("no audience requested", &ours, json!(null), Ok(json!([SERVER]))),
        (
            "none of them",
            &theirs,
            json!(["else", "third"]),
            Err(refused(r#"["vault" "mail"]"#, r#"["else" "third"]"#)),
        ),
        (
            "not this server",
            &theirs,
            json!(null),
            Err(refused(r#"["vault" "mail"]"#, &format!("[{SERVER:?}]"))),
        ),
    ] {
        let review = json!({"spec": {"token": token, "audiences": asked}});
        let status = test_server.post(REVIEWS, review).await.ok().body["status"].clone();
        match want {
            Ok(audiences) => {
                assert_eq!(status["authenticated"], true, "{case}");
                assert_eq!(status["audiences"], audiences, "{case}");
            }
            Err(want) => assert_eq!(status, want, "{case}"),
        }
    }
    let review = json!({"spec": {"token": theirs, "audiences": ["mail"]}});
    let reviewed = test_server.post(REVIEWS, review.clone()).await.ok();
    let extra = &reviewed.body["status"]["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], json!([pod]));
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["n1"]));
    tokio::time::advance(Duration::from_secs(601)).await;
    let reviewed = test_server.post(REVIEWS, review).await.ok();
    let expired = "[invalid bearer token, service account token has expired]";
    assert_eq!(reviewed.body["status"], json!({"user": {}, "error": expired}));
    let nothing = test_server.post(REVIEWS, json!({"spec": {}})).await;
    assert_eq!(
        (nothing.code, nothing.message()),
        (400, "token is required for TokenReview in authentication")
    );
}
