//! Property test: the client against a runtime with mutated replies.
//!
//! The bytes come over a socket as from a real runtime, so that the whole call is tested: decoding,
//! validation, and conversion to our own types.

use std::collections::HashMap;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut};
use futures::StreamExt;
use parking_lot::Mutex;
use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::labels;
use podwright_core::time::Mono;
use podwright_proto::containerd_events as containerd;
use podwright_proto::cri;
use podwright_testkit::mutation::{self, mutated};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use prost::Message;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::{Response, Status};

use crate::{Client, Streams, Timeouts};

/// Reply of each call, by the call's name. Other calls are not implemented.
type Replies = HashMap<&'static str, Vec<u8>>;

#[test]
fn mutated_replies_are_refused_or_parsed() {
    let scheduler = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, client) = scheduler.block_on(async { ReplyServer::start() });
    // One case makes some twenty calls.
    let config = ProptestConfig { source_file: Some(file!()), ..mutation::config_of(50) };
    let outcome = TestRunner::new(config).run(&mutated_replies(), |answers| {
        scheduler.block_on(async {
            *server.answers.lock() = answers.into_iter().collect();
            query_pods(&client).await;
            query_runtime(&client).await;
            run_operations(&client).await;
            receive_events(&server, &client).await;
        });
        Ok(())
    });
    if let Err(failed) = outcome {
        panic!("{failed}");
    }
}

#[test]
fn valid_replies_are_parsed() {
    let scheduler = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    scheduler.block_on(async {
        let (server, client) = ReplyServer::start();
        *server.answers.lock() = valid_replies().into_iter().collect();
        client.version().await.unwrap();
        client.status().await.unwrap();
        assert_eq!(client.sandbox_image().await.unwrap().as_deref(), Some("pause:1"));
        assert_eq!(client.list_pods().await.unwrap().pods().count(), 1);
        assert_eq!(client.leftovers().await.unwrap().containers.len(), 1);
        let (seen, _) = client.observe(&PodUid::new("u"), &name(), Mono::ZERO).await.unwrap();
        assert_eq!((seen.sandboxes.len(), seen.instances.len()), (1, 1));
        assert!(client.image_status("i").await.unwrap().is_some());
        assert_eq!(client.container_stats().await.unwrap().len(), 1);
        client.image_directory().await.unwrap();
        assert_eq!(client.hints("containerd").await.unwrap().count().await, 1);
        server.answers.lock().remove("GetContainerEvents");
        assert_eq!(client.hints("containerd").await.unwrap().count().await, 1);
    });
}

/// A number that does not end: its decoder consumes nothing, so the same bytes are there again.
#[test]
fn events_end_with_the_first_that_does_not_decode() {
    let scheduler = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    scheduler.block_on(async {
        let (server, client) = ReplyServer::start();
        for call in ["GetContainerEvents", "Subscribe"] {
            *server.answers.lock() = HashMap::from([(call, vec![0xff; 11])]);
            match client.hints("containerd").await {
                Ok(hints) => {
                    let hints: Vec<_> = hints.take(10).collect().await;
                    assert!(matches!(hints.as_slice(), [Err(_)]), "{call}: {hints:?}");
                }
                Err(error) => assert_eq!(call, "GetContainerEvents", "{error}"),
            }
        }
    });
}

fn name() -> PodName {
    PodName::new("n", "p")
}

async fn query_pods(client: &Client) {
    if let Ok(pods) = client.list_pods().await {
        assert!(pods.pods().all(|(uid, _, _)| !uid.as_str().is_empty()), "{pods:?}");
    }
    if let Ok((seen, containers)) = client.observe(&PodUid::new("u"), &name(), Mono::ZERO).await {
        assert!(seen.sandboxes.iter().all(|sandbox| !sandbox.id.as_str().is_empty()));
        assert_eq!(seen.instances.len(), containers.len());
        assert!(seen.instances.iter().all(|it| !it.id.as_str().is_empty() && !it.image.is_empty()));
    }
    if let Ok(left) = client.leftovers().await {
        assert!(left.containers.iter().all(|container| !container.pod.as_str().is_empty()));
        assert!(!left.images_in_use.contains(""));
    }
    let _ = client.container_stats().await;
    let _ = client.sandbox_info(&SandboxId::new("s")).await;
}

async fn query_runtime(client: &Client) {
    if let Ok(version) = client.version().await {
        assert!(!version.runtime_name.is_empty() && !version.runtime_version.is_empty());
    }
    let _ = client.status().await;
    let _ = client.cgroup_driver().await;
    if let Ok(image) = client.sandbox_image().await {
        assert_ne!(image.as_deref(), Some(""));
    }
    if let Ok(directory) = client.image_directory().await {
        assert_ne!(directory.as_os_str(), "");
    }
    if let Ok(Some(image)) = client.image_status("i").await {
        assert!(!image.id.is_empty() && image.size > 0);
    }
    let _ = client.list_images().await;
}

async fn run_operations(client: &Client) {
    let (container, sandbox) = (ContainerId::new("c"), SandboxId::new("s"));
    if let Ok(id) = client.run_sandbox(cri::PodSandboxConfig::default(), "").await {
        assert_ne!(id.as_str(), "");
    }
    let made = client
        .create_container(
            &sandbox,
            cri::ContainerConfig::default(),
            cri::PodSandboxConfig::default(),
        )
        .await;
    if let Ok(id) = made {
        assert_ne!(id.as_str(), "");
    }
    if let Ok(pulled) = client.pull_image(cri::ImageSpec::default(), None, None).await {
        assert_ne!(pulled.image_ref, "");
    }
    let _ = client.exec(&container, vec!["true".into()], None).await;
    let urls = [
        client.exec_url(&container, vec!["true".into()], Streams::default()).await,
        client.attach_url(&container, Streams::default()).await,
        client.port_forward_url(&sandbox, vec![80]).await,
    ];
    assert!(urls.iter().flatten().all(|url| !url.is_empty()), "{urls:?}");
}

/// First the CRI's own events; then those of containerd, which are used where the former do not
/// exist.
async fn receive_events(server: &ReplyServer, client: &Client) {
    for _ in 0..2 {
        if let Ok(hints) = client.hints("containerd").await {
            assert!(hints.count().await <= 1);
        }
        server.answers.lock().remove("GetContainerEvents");
    }
}

fn mutated_replies() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let mutated = |(call, good)| mutated(vec![good]).prop_map(move |bytes| (call, bytes));
    valid_replies().into_iter().map(mutated).collect::<Vec<_>>()
}

fn valid_replies() -> Vec<(&'static str, Vec<u8>)> {
    [pod_replies(), runtime_replies(), image_replies(), operation_replies(), events()].concat()
}

fn pod_replies() -> Vec<(&'static str, Vec<u8>)> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [
        label(labels::POD_UID, "u"),
        label(labels::POD_NAME, "p"),
        label(labels::POD_NAMESPACE, "n"),
    ];
    let sandbox = cri::PodSandbox {
        id: "s1".into(),
        metadata: Some(sandbox_metadata()),
        created_at: 1_000_000_000,
        labels: labels.clone().into(),
        ..Default::default()
    };
    let container = cri::Container {
        id: "c1".into(),
        pod_sandbox_id: "s1".into(),
        metadata: Some(container_metadata()),
        created_at: 1_000_000_000,
        image: Some(image_spec()),
        image_ref: "sha256:1".into(),
        state: cri::ContainerState::ContainerRunning.into(),
        labels: labels.into(),
        ..Default::default()
    };
    let stats = cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes { id: "c1".into(), ..Default::default() }),
        cpu: Some(cri::CpuUsage {
            timestamp: 1_000_000_000,
            usage_core_nano_seconds: Some(cri::UInt64Value { value: 5 }),
            ..Default::default()
        }),
        writable_layer: Some(filesystem()),
        ..Default::default()
    };
    let status_of_sandbox = cri::PodSandboxStatusResponse {
        status: Some(cri::PodSandboxStatus {
            id: "s1".into(),
            metadata: Some(sandbox_metadata()),
            created_at: 1_000_000_000,
            ..Default::default()
        }),
        info: [("info".to_owned(), "{\"pid\":1}".to_owned())].into(),
        ..Default::default()
    };
    let status_of_container = cri::ContainerStatusResponse {
        status: Some(cri::ContainerStatus {
            id: "c1".into(),
            metadata: Some(container_metadata()),
            created_at: 1_000_000_000,
            image: Some(image_spec()),
            image_ref: "sha256:1".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    vec![
        ("ListPodSandbox", cri::ListPodSandboxResponse { items: vec![sandbox] }.encode_to_vec()),
        (
            "ListContainers",
            cri::ListContainersResponse { containers: vec![container] }.encode_to_vec(),
        ),
        ("PodSandboxStatus", status_of_sandbox.encode_to_vec()),
        ("ContainerStatus", status_of_container.encode_to_vec()),
        (
            "ListContainerStats",
            cri::ListContainerStatsResponse { stats: vec![stats] }.encode_to_vec(),
        ),
    ]
}

fn runtime_replies() -> Vec<(&'static str, Vec<u8>)> {
    let version = cri::VersionResponse {
        version: "0.1.0".into(),
        runtime_name: "containerd".into(),
        runtime_version: "2.1.0".into(),
        runtime_api_version: "v1".into(),
    };
    let ready = |kind: &str| cri::RuntimeCondition {
        r#type: kind.into(),
        status: true,
        reason: String::new(),
        message: String::new(),
    };
    let status = cri::StatusResponse {
        status: Some(cri::RuntimeStatus {
            conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
        }),
        info: [("config".to_owned(), "{\"sandboxImage\":\"pause:1\"}".to_owned())].into(),
        ..Default::default()
    };
    let driver =
        cri::LinuxRuntimeConfiguration { cgroup_driver: cri::CgroupDriver::Cgroupfs.into() };
    vec![
        ("Version", version.encode_to_vec()),
        ("Status", status.encode_to_vec()),
        ("RuntimeConfig", cri::RuntimeConfigResponse { linux: Some(driver) }.encode_to_vec()),
    ]
}

fn image_replies() -> Vec<(&'static str, Vec<u8>)> {
    let image = cri::Image {
        id: "sha256:1".into(),
        repo_tags: vec!["i:1".into()],
        size: 7,
        uid: Some(cri::Int64Value { value: 1000 }),
        ..Default::default()
    };
    let status = cri::ImageStatusResponse { image: Some(image.clone()), ..Default::default() };
    let filesystems = cri::ImageFsInfoResponse {
        image_filesystems: vec![filesystem()],
        container_filesystems: vec![filesystem()],
    };
    vec![
        ("ImageStatus", status.encode_to_vec()),
        ("ListImages", cri::ListImagesResponse { images: vec![image] }.encode_to_vec()),
        ("ImageFsInfo", filesystems.encode_to_vec()),
        ("PullImage", cri::PullImageResponse { image_ref: "sha256:1".into() }.encode_to_vec()),
    ]
}

fn operation_replies() -> Vec<(&'static str, Vec<u8>)> {
    let url = "http://127.0.0.1:1/exec/token";
    let output =
        cri::ExecSyncResponse { stdout: b"out".to_vec(), stderr: b"err".to_vec(), exit_code: 1 };
    vec![
        (
            "RunPodSandbox",
            cri::RunPodSandboxResponse { pod_sandbox_id: "s1".into() }.encode_to_vec(),
        ),
        (
            "CreateContainer",
            cri::CreateContainerResponse { container_id: "c1".into() }.encode_to_vec(),
        ),
        ("ExecSync", output.encode_to_vec()),
        ("Exec", cri::ExecResponse { url: url.into() }.encode_to_vec()),
        ("Attach", cri::AttachResponse { url: url.into() }.encode_to_vec()),
        ("PortForward", cri::PortForwardResponse { url: url.into() }.encode_to_vec()),
    ]
}

fn events() -> Vec<(&'static str, Vec<u8>)> {
    let of_cri = cri::ContainerEventResponse {
        container_id: "c1".into(),
        pod_sandbox_status: Some(cri::PodSandboxStatus {
            metadata: Some(sandbox_metadata()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let exit =
        containerd::TaskExit { container_id: "c1".into(), id: "c1".into(), ..Default::default() };
    let of_containerd = containerd::Envelope {
        topic: "/tasks/exit".into(),
        event: Some(prost_types::Any { type_url: String::new(), value: exit.encode_to_vec() }),
        ..Default::default()
    };
    vec![
        ("GetContainerEvents", of_cri.encode_to_vec()),
        ("Subscribe", of_containerd.encode_to_vec()),
    ]
}

fn sandbox_metadata() -> cri::PodSandboxMetadata {
    cri::PodSandboxMetadata { name: "p".into(), uid: "u".into(), namespace: "n".into(), attempt: 1 }
}

fn container_metadata() -> cri::ContainerMetadata {
    cri::ContainerMetadata { name: "app".into(), attempt: 1 }
}

fn image_spec() -> cri::ImageSpec {
    cri::ImageSpec { image: "i:1".into(), ..Default::default() }
}

fn filesystem() -> cri::FilesystemUsage {
    cri::FilesystemUsage {
        timestamp: 1_000_000_000,
        fs_id: Some(cri::FilesystemIdentifier { mountpoint: "/var/lib/images".into() }),
        used_bytes: Some(cri::UInt64Value { value: 9 }),
        inodes_used: Some(cri::UInt64Value { value: 2 }),
    }
}

/// Replies to every call with the bytes configured for it.
struct ReplyServer {
    answers: Arc<Mutex<Replies>>,
    _socket: TempDir,
}

impl ReplyServer {
    fn start() -> (Self, Client) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let answers = Arc::new(Mutex::new(Replies::new()));
        let server = Server::builder()
            .add_service(Part::<OfRuntime>::new(&answers))
            .add_service(Part::<OfImages>::new(&answers))
            .add_service(Part::<OfEvents>::new(&answers))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        let endpoint = socket.to_str().unwrap().parse().unwrap();
        let client = Client::new(&endpoint, Timeouts { call: Duration::from_secs(30) });
        (Self { answers, _socket: directory }, client)
    }
}

/// One of its services.
struct Part<S> {
    answers: Arc<Mutex<Replies>>,
    service: PhantomData<fn() -> S>,
}

impl<S> Part<S> {
    fn new(answers: &Arc<Mutex<Replies>>) -> Self {
        Self { answers: answers.clone(), service: PhantomData }
    }
}

impl<S> Clone for Part<S> {
    fn clone(&self) -> Self {
        Self::new(&self.answers)
    }
}

trait Named {
    const NAME: &'static str;
}

struct OfRuntime;
struct OfImages;
struct OfEvents;

impl Named for OfRuntime {
    const NAME: &'static str = cri::runtime_service_server::SERVICE_NAME;
}

impl Named for OfImages {
    const NAME: &'static str = cri::image_service_server::SERVICE_NAME;
}

impl Named for OfEvents {
    const NAME: &'static str = containerd::events_server::SERVICE_NAME;
}

impl<S: Named> NamedService for Part<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Part<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = request.uri().path().rsplit('/').next().unwrap_or_default();
        let answer = self.answers.lock().get(call).cloned();
        let answer = answer.ok_or_else(|| Status::unimplemented("not offered"));
        let service = tower::service_fn(move |_: tonic::Request<()>| {
            std::future::ready(answer.clone().map(Response::new))
        });
        Box::pin(async move { Ok(Grpc::new(Verbatim).unary(service, request).await) })
    }
}

/// Ignores the request and sends the bytes unchanged.
struct Verbatim;

impl Codec for Verbatim {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Verbatim {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Verbatim {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, sent: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        sent.advance(sent.remaining());
        Ok(Some(()))
    }
}
