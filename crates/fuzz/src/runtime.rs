//! Replies of the container runtime, through the real client over a connection in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::labels;
use podwright_core::time::Mono;
use podwright_cri::{Client, Streams, Timeouts};
use podwright_proto::{containerd_events as containerd, cri};
use prost::Message as _;
use tonic::transport::Endpoint;

/// Replies by the name of the call; other calls are not implemented.
type Replies = BTreeMap<String, Bytes>;

/// The calls, whose position begins each reply of an input.
const CALLS: [&str; 18] = [
    "ListPodSandbox",
    "ListContainers",
    "PodSandboxStatus",
    "ContainerStatus",
    "ListContainerStats",
    "Version",
    "Status",
    "RuntimeConfig",
    "ImageStatus",
    "ListImages",
    "ImageFsInfo",
    "PullImage",
    "RunPodSandbox",
    "CreateContainer",
    "ExecSync",
    "Exec",
    "GetContainerEvents",
    "Subscribe",
];

/// Replies, each after its call and its length.
pub(crate) fn replies(bytes: &[u8]) {
    let mut replies = Replies::new();
    let mut rest = bytes;
    while let [call, high, low, body @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(body.len());
        let (reply, after) = body.split_at_checked(length).unwrap_or((body, &[]));
        if let Some(call) = CALLS.get(usize::from(*call) % CALLS.len()) {
            replies.insert((*call).to_owned(), Bytes::copy_from_slice(reply));
        }
        rest = after;
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap_or_else(|error| panic!("{error}")).block_on(converse(replies));
}

async fn converse(replies: Replies) {
    let has = |calls: &[&str]| calls.iter().any(|call| replies.contains_key(*call));
    let (pods, status) = (has(&CALLS[..5]), has(&CALLS[5..8]));
    let (images, made) = (has(&CALLS[8..12]), has(&CALLS[12..16]));
    let events = has(&CALLS[16..]);
    let client = connect(Arc::new(replies)).await;
    if pods {
        query_pods(&client).await;
    }
    if status {
        query_runtime(&client).await;
    }
    if images {
        query_images(&client).await;
    }
    if made {
        make(&client).await;
    }
    if events && let Ok(hints) = client.hints("containerd").await {
        assert!(futures_count(hints).await <= 1);
    }
}

/// The number of items of a stream that ends.
async fn futures_count<T>(stream: impl futures::Stream<Item = T>) -> usize {
    use futures::StreamExt as _;
    stream.count().await
}

async fn query_pods(client: &Client) {
    if let Ok(pods) = client.list_pods().await {
        assert!(pods.pods().all(|(uid, _, _)| !uid.as_str().is_empty()), "{pods:?}");
    }
    let name = PodName::new("n", "p");
    if let Ok((seen, containers)) = client.observe(&PodUid::new("u"), &name, Mono::ZERO).await {
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
}

async fn query_images(client: &Client) {
    if let Ok(directory) = client.image_directory().await {
        assert_ne!(directory.as_os_str(), "");
    }
    if let Ok(Some(image)) = client.image_status("i").await {
        assert!(!image.id.is_empty() && image.size > 0);
    }
    let _ = client.list_images().await;
    if let Ok(pulled) = client.pull_image(cri::ImageSpec::default(), None, None).await {
        assert_ne!(pulled.image_ref, "");
    }
}

async fn make(client: &Client) {
    let (container, sandbox) = (ContainerId::new("c"), SandboxId::new("s"));
    if let Ok(id) = client.run_sandbox(cri::PodSandboxConfig::default(), "").await {
        assert_ne!(id.as_str(), "");
    }
    let (config, sandbox_config) =
        (cri::ContainerConfig::default(), cri::PodSandboxConfig::default());
    if let Ok(id) = client.create_container(&sandbox, config, sandbox_config).await {
        assert_ne!(id.as_str(), "");
    }
    let _ = client.exec(&container, vec!["true".into()], None).await;
    if let Ok(url) = client.exec_url(&container, vec!["true".into()], Streams::default()).await {
        assert!(!url.is_empty());
    }
}

/// A client whose runtime sends these replies.
async fn connect(replies: Arc<Replies>) -> Client {
    let connector = tower::service_fn(move |_: http::Uri| {
        let replies = replies.clone();
        async move {
            let (client, server) = tokio::io::duplex(1 << 20);
            tokio::spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let response = response(&replies, request.uri().path());
                    async move { Ok::<_, Infallible>(response) }
                });
                let builder = http2::Builder::new(TokioExecutor::new());
                // Ends with the client.
                let _ = builder.serve_connection(TokioIo::new(server), service).await;
            });
            Ok::<_, Infallible>(TokioIo::new(client))
        }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
    Client::over(channel, Timeouts { call: Duration::from_secs(30) })
}

fn response(replies: &Replies, path: &str) -> Response<BoxBody<Bytes, Infallible>> {
    let call = path.rsplit('/').next().unwrap_or_default();
    let trailer = |status: &'static str| {
        let status = HeaderValue::from_static(status);
        Frame::trailers(HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            status,
        )]))
    };
    let frames = match replies.get(call) {
        Some(reply) => {
            let mut message = BytesMut::with_capacity(reply.len() + 5);
            message.put_u8(0);
            message.put_u32(u32::try_from(reply.len()).unwrap_or(u32::MAX));
            message.put_slice(reply);
            vec![Ok(Frame::data(message.freeze())), Ok(trailer("0"))]
        }
        None => vec![Ok(trailer("12"))],
    };
    let body = BoxBody::new(StreamBody::new(futures::stream::iter(frames)));
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// All valid replies to pods, runtime, images and so on, each group as one input.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let undecodable = vec![("Subscribe", vec![0xff]), ("GetContainerEvents", vec![0xff])];
    [pod_replies(), runtime_replies(), image_replies(), other_replies(), undecodable]
        .map(joined)
        .to_vec()
}

fn joined(replies: Vec<(&'static str, Vec<u8>)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (call, reply) in replies {
        let position = CALLS.iter().position(|known| *known == call).unwrap_or_default();
        bytes.push(u8::try_from(position).unwrap_or_default());
        bytes.extend_from_slice(&u16::try_from(reply.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(reply);
    }
    bytes
}

fn pod_replies() -> Vec<(&'static str, Vec<u8>)> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [
        label(labels::POD_UID, "u"),
        label(labels::POD_NAME, "p"),
        label(labels::POD_NAMESPACE, "n"),
    ];
    let of_sandbox = cri::PodSandboxMetadata {
        name: "p".into(),
        uid: "u".into(),
        namespace: "n".into(),
        attempt: 1,
    };
    let of_container = cri::ContainerMetadata { name: "app".into(), attempt: 1 };
    let image = cri::ImageSpec { image: "i:1".into(), ..Default::default() };
    let sandbox = cri::PodSandbox {
        id: "s1".into(),
        metadata: Some(of_sandbox.clone()),
        created_at: 1_000_000_000,
        labels: labels.clone().into(),
        ..Default::default()
    };
    let container = cri::Container {
        id: "c1".into(),
        pod_sandbox_id: "s1".into(),
        metadata: Some(of_container.clone()),
        created_at: 1_000_000_000,
        image: Some(image.clone()),
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
    let network = cri::PodSandboxNetworkStatus { ip: "10.0.0.2".into(), additional_ips: vec![] };
    let sandbox_status = cri::PodSandboxStatusResponse {
        status: Some(cri::PodSandboxStatus {
            id: "s1".into(),
            metadata: Some(of_sandbox),
            created_at: 1_000_000_000,
            network: Some(network),
            ..Default::default()
        }),
        info: [("info".to_owned(), "{\"pid\":1}".to_owned())].into(),
        ..Default::default()
    };
    let container_status = cri::ContainerStatusResponse {
        status: Some(cri::ContainerStatus {
            id: "c1".into(),
            metadata: Some(of_container),
            created_at: 1_000_000_000,
            started_at: 2_000_000_000,
            finished_at: 3_000_000_000,
            exit_code: 1,
            reason: "Error".into(),
            image: Some(image),
            image_ref: "sha256:1".into(),
            log_path: "/var/log/pods/n_p_u/app/1.log".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let sandboxes = cri::ListPodSandboxResponse { items: vec![sandbox] };
    let containers = cri::ListContainersResponse { containers: vec![container] };
    let all_stats = cri::ListContainerStatsResponse { stats: vec![stats] };
    vec![
        ("ListPodSandbox", sandboxes.encode_to_vec()),
        ("ListContainers", containers.encode_to_vec()),
        ("PodSandboxStatus", sandbox_status.encode_to_vec()),
        ("ContainerStatus", container_status.encode_to_vec()),
        ("ListContainerStats", all_stats.encode_to_vec()),
    ]
}

fn runtime_replies() -> Vec<(&'static str, Vec<u8>)> {
    let version = cri::VersionResponse {
        version: "0.1.0".into(),
        runtime_name: "containerd".into(),
        runtime_version: "2.1.0".into(),
        runtime_api_version: "v1".into(),
    };
    let condition = cri::RuntimeCondition {
        r#type: "NetworkReady".into(),
        status: false,
        reason: "NetworkPluginNotReady".into(),
        message: "no network".into(),
    };
    let status = cri::StatusResponse {
        status: Some(cri::RuntimeStatus { conditions: vec![condition] }),
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

fn other_replies() -> Vec<(&'static str, Vec<u8>)> {
    let output =
        cri::ExecSyncResponse { stdout: b"out".to_vec(), stderr: b"err".to_vec(), exit_code: 1 };
    let event = cri::ContainerEventResponse {
        container_id: "c1".into(),
        pod_sandbox_status: Some(cri::PodSandboxStatus {
            metadata: Some(cri::PodSandboxMetadata { uid: "u".into(), ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let exit =
        containerd::TaskExit { container_id: "c1".into(), id: "c1".into(), ..Default::default() };
    let envelope = containerd::Envelope {
        topic: "/tasks/exit".into(),
        event: Some(prost_types::Any { type_url: String::new(), value: exit.encode_to_vec() }),
        ..Default::default()
    };
    let run = cri::RunPodSandboxResponse { pod_sandbox_id: "s1".into() };
    let create = cri::CreateContainerResponse { container_id: "c1".into() };
    vec![
        ("RunPodSandbox", run.encode_to_vec()),
        ("CreateContainer", create.encode_to_vec()),
        ("ExecSync", output.encode_to_vec()),
        ("Exec", cri::ExecResponse { url: "http://127.0.0.1:1/exec/token".into() }.encode_to_vec()),
        ("GetContainerEvents", event.encode_to_vec()),
        ("Subscribe", envelope.encode_to_vec()),
    ]
}

fn filesystem() -> cri::FilesystemUsage {
    cri::FilesystemUsage {
        timestamp: 1_000_000_000,
        fs_id: Some(cri::FilesystemIdentifier { mountpoint: "/var/lib/images".into() }),
        used_bytes: Some(cri::UInt64Value { value: 9 }),
        inodes_used: Some(cri::UInt64Value { value: 2 }),
    }
}
