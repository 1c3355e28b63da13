//! Checks of what the published CRI types do not cover, against recorded bytes.
#![allow(clippy::unwrap_used)]

use podwright_proto::FILE_DESCRIPTOR_SET;
use podwright_proto::containerd_events::{
    Envelope, SubscribeRequest, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit,
    TaskOom, TaskPaused, TaskResumed, TaskStart,
};
use podwright_proto::cri::{
    AuthConfig, ContainerConfig, CreateContainerRequest, KeyValue, PullImageRequest,
};
use podwright_proto::grpc_health::health_check_response::ServingStatus;
use podwright_proto::grpc_health::{HealthCheckRequest, HealthCheckResponse};
use prost::Message;
use prost_reflect::DescriptorPool;
use prost_types::Timestamp;

/// Sent by containerd 1.6.20 when `exit 3`, run by exec in the container `demo`, exited.
const ENVELOPE: &[u8] = b"\n\x0c\x08\xf5\xbd\xe8\xd7\x06\x10\xc9\xd2\xf1\x8a\x02\x12\x06k8s.io\
    \x1a\x0b/tasks/exit\";\n\x1acontainerd.events.TaskExit\x12\x1d\n\x04demo\x12\x02e1\x18\x85E \
    \x03*\x0c\x08\xf5\xbd\xe8\xd7\x06\x10\x82\x95\xb3\x8a\x02";

fn demo() -> String {
    "demo".to_owned()
}

#[test]
fn recorded_containerd_exit_event_is_decoded() {
    let envelope = Envelope::decode(ENVELOPE).unwrap();
    assert_eq!(envelope.timestamp, Some(Timestamp { seconds: 1_794_776_821, nanos: 559_704_393 }));
    assert_eq!(envelope.namespace, "k8s.io");
    assert_eq!(envelope.topic, "/tasks/exit");
    let event = envelope.event.unwrap();
    assert_eq!(event.type_url, "containerd.events.TaskExit");
    let exit = TaskExit {
        container_id: demo(),
        id: "e1".to_owned(),
        pid: 8837,
        exit_status: 3,
        exited_at: Some(Timestamp { seconds: 1_794_776_821, nanos: 558_680_706 }),
    };
    assert_eq!(TaskExit::decode(event.value.as_slice()), Ok(exit));
}

/// From containerd 1.6.20, as above; the paths in the first are shortened.
#[test]
fn other_recorded_containerd_task_events_are_decoded() {
    let bytes: &[u8] = b"\n\x04demo\x12\x07/bundle\"\n\n\x02/i\x12\x04/out0\xe6D";
    let created = TaskCreate { container_id: demo(), pid: 8806 };
    assert_eq!(TaskCreate::decode(bytes), Ok(created), "/tasks/create");

    let bytes: &[u8] = b"\n\x04demo\x10\xe6D";
    let started = TaskStart { container_id: demo(), pid: 8806 };
    assert_eq!(TaskStart::decode(bytes), Ok(started), "/tasks/start");

    let bytes: &[u8] = b"\n\x04demo\x10\xe6D\x18\x89\x01\"\x0c\x08\xf5\xbd\xe8\xd7\x06\x10\xd6\xd4\
        \x8a\xbc\x02";
    let deleted = TaskDelete {
        container_id: demo(),
        pid: 8806,
        exit_status: 137,
        exited_at: Some(Timestamp { seconds: 1_794_776_821, nanos: 662_874_710 }),
        id: String::new(),
    };
    assert_eq!(TaskDelete::decode(bytes), Ok(deleted), "/tasks/delete");

    let bytes: &[u8] = b"\n\x04demo\x12\x02e1";
    let added = TaskExecAdded { container_id: demo(), exec_id: "e1".to_owned() };
    assert_eq!(TaskExecAdded::decode(bytes), Ok(added), "/tasks/exec-added");

    let bytes: &[u8] = b"\n\x04demo\x12\x02e1\x18\x85E";
    let started = TaskExecStarted { container_id: demo(), exec_id: "e1".to_owned(), pid: 8837 };
    assert_eq!(TaskExecStarted::decode(bytes), Ok(started), "/tasks/exec-started");

    let bytes: &[u8] = b"\n\x04demo";
    assert_eq!(TaskOom::decode(bytes), Ok(TaskOom { container_id: demo() }), "/tasks/oom");
    assert_eq!(TaskPaused::decode(bytes), Ok(TaskPaused { container_id: demo() }), "/tasks/paused");
    let resumed = TaskResumed { container_id: demo() };
    assert_eq!(TaskResumed::decode(bytes), Ok(resumed), "/tasks/resumed");
}

#[test]
fn subscription_filters_are_encoded_as_containerd_expects() {
    let filters = vec!["topic==\"/a\"".to_owned(), "b".to_owned()];
    assert_eq!(SubscribeRequest { filters }.encode_to_vec(), b"\n\x0btopic==\"/a\"\n\x01b");
}

#[test]
fn health_check_matches_the_grpc_health_protocol() {
    let request = HealthCheckRequest { service: "db".to_owned() };
    assert_eq!(request.encode_to_vec(), b"\n\x02db");
    for (bytes, want) in [
        (&b""[..], ServingStatus::Unknown),
        (b"\x08\x01", ServingStatus::Serving),
        (b"\x08\x02", ServingStatus::NotServing),
        (b"\x08\x03", ServingStatus::ServiceUnknown),
    ] {
        assert_eq!(HealthCheckResponse::decode(bytes).unwrap().status(), want);
    }
}

/// The path of a gRPC request is made of these names.
#[test]
fn services_have_their_published_names() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    for (service, method, streams) in [
        ("containerd.services.events.v1.Events", "Subscribe", true),
        ("grpc.health.v1.Health", "Check", false),
    ] {
        let service = pool.get_service_by_name(service).unwrap();
        let methods: Vec<_> =
            service.methods().map(|m| (m.name().to_owned(), m.is_server_streaming())).collect();
        assert_eq!(methods, [(method.to_owned(), streams)], "{}", service.full_name());
    }
}

#[test]
fn debug_output_of_a_request_has_no_secret() {
    let secret = || "hunter2".to_owned();
    let auth = AuthConfig {
        server_address: "registry.example".to_owned(),
        username: "jane".to_owned(),
        password: secret(),
        auth: secret(),
        identity_token: secret(),
        registry_token: secret(),
    };
    let env = KeyValue { key: "TOKEN".to_owned(), value: secret().into_bytes() };
    let pull = PullImageRequest { auth: Some(auth), ..Default::default() };
    let create = CreateContainerRequest {
        config: Some(ContainerConfig { envs: vec![env], ..Default::default() }),
        ..Default::default()
    };
    let shown = format!("{pull:?} {create:?}");
    let numbers = format!("{:?}", secret().as_bytes()); // as Debug prints bytes
    for (text, want) in [
        ("registry.example", true),
        ("jane", true),
        ("TOKEN", true),
        ("hunter2", false),
        (numbers.as_str(), false),
    ] {
        assert_eq!(shown.contains(text), want, "{text} in {shown}");
    }
}
