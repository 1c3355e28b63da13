#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use axum::Extension;
use axum::Router;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::access::Identity;
use crate::in_flight::InFlight;
use crate::{Clock, Ids, Limits, Settings, Store};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MEBIBYTE: usize = 1 << 20;

async fn send(router: &Router, request: Request<Body>) -> Response<Body> {
    router.clone().oneshot(request).await.unwrap()
}

async fn watch(router: &Router, query: &str) -> Response<Body> {
    let request = Request::get(format!("{MAPS}?watch=true{query}")).body(Body::empty());
    send(router, request.unwrap()).await
}

async fn create(router: &Router, name: &str, bytes: usize) {
    let data = "x".repeat(bytes);
    let map = json!({"metadata": {"name": name}, "data": {"a": data}});
    let request = Request::post(MAPS).header("content-type", "application/json");
    let created = send(router, request.body(Body::from(map.to_string())).unwrap()).await;
    assert_eq!(created.status(), StatusCode::CREATED);
}

/// Reads what there is, until the server has nothing to send for a while.
async fn read(body: &mut Body) -> String {
    let mut text = Vec::new();
    while let Ok(Some(frame)) = tokio::time::timeout(Duration::from_secs(1), body.frame()).await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    String::from_utf8(text).unwrap()
}

/// A pod opens many watches of large objects and reads none of them.
#[tokio::test(start_paused = true)]
async fn watches_that_are_not_read_count_against_the_share_of_the_client() {
    let store = Store::in_memory(Limits::default(), Clock::system()).unwrap();
    let settings = Settings::new(Clock::system(), Ids::system());
    let server = ApiServer::start(store, settings).await.unwrap();
    let owner = server.service(Identity::admin());
    let share = InFlight::new().of(Ipv4Addr::new(10, 213, 0, 2).into());
    let pod = server.service(Identity::admin()).layer(Extension(share));
    for number in 0..5 {
        create(&owner, &format!("m{number}"), MEBIBYTE).await;
    }
    // given: the first one takes most of the share, as it has to hold five objects
    let mut first = watch(&pod, "").await;
    assert_eq!(first.status(), StatusCode::OK);
    for _ in 0..100 {
        assert_eq!(watch(&pod, "").await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    // when it is read, others may start
    let initial = read(first.body_mut()).await;
    assert_eq!(initial.matches("\"ADDED\"").count(), 6, "five and the certificates");
    let second = watch(&pod, "").await;
    assert_eq!(second.status(), StatusCode::OK);
    drop(second);
    // and events count as well
    let version = "&resourceVersion=".to_owned() + &server.store().revision().to_string();
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(watch(&pod, &version).await.into_body());
    }
    create(&owner, "large", MEBIBYTE).await;
    let mut refused = 0;
    for body in &mut watches {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        refused += usize::from(frame.starts_with(b"{\"type\":\"ERROR\""));
    }
    assert_eq!(refused, 13, "seven of a mebibyte each fit into the share");
    drop((first, watches));
    assert_eq!(watch(&pod, "").await.status(), StatusCode::OK, "nothing is counted any more");
}
