//! List of all pods of the runtime, for a relist.
//!
//! A relist needs the id, the state and the pod of each sandbox and container, which are a tenth of
//! the reply. So the reply is decoded into messages that have only these fields, with the numbers of
//! the CRI; the rest is skipped. Text is not copied: it stays in the received buffer.

use std::collections::HashSet;

use bytes::Bytes;
use podwright_core::labels;
use podwright_core::observed::{ItemKind, ListedItem, ListedState, RuntimeListing};
use podwright_proto::cri;
use prost::Message;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

use super::{Client, MAX_LIST_REPLY};
use crate::convert;
use crate::error::Error;

/// Sandboxes and containers of all pods.
#[derive(Debug, Default)]
pub struct PodList {
    sandboxes: Vec<SandboxItem>,
    containers: Vec<ContainerItem>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxList {
    #[prost(message, repeated, tag = "1")]
    items: Vec<SandboxItem>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxItem {
    #[prost(bytes = "bytes", tag = "1")]
    id: Bytes,
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(message, repeated, tag = "5")]
    labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerList {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ContainerItem>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerItem {
    #[prost(bytes = "bytes", tag = "1")]
    id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    sandbox: Bytes,
    #[prost(int32, tag = "6")]
    state: i32,
    #[prost(message, repeated, tag = "8")]
    labels: Vec<Label>,
}

/// An entry of a map.
#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl SandboxItem {
    /// Empty if it is not UTF-8; no node owns such a sandbox.
    fn id_text(&self) -> &str {
        std::str::from_utf8(&self.id).unwrap_or_default()
    }
}

impl PodList {
    /// The sandboxes and containers that belong to a pod.
    pub fn items(&self) -> Result<Vec<ListedItem<'_>>, Error> {
        let mut items = Vec::with_capacity(self.sandboxes.len() + self.containers.len());
        for SandboxItem { id, state, labels } in &self.sandboxes {
            let state = match convert::sandbox_ready(*state) {
                true => ListedState::Running,
                false => ListedState::Exited,
            };
            items.extend(item(ItemKind::Sandbox, id, state, labels)?);
        }
        for ContainerItem { id, sandbox: _, state, labels } in &self.containers {
            let state = convert::listed_state(*state);
            items.extend(item(ItemKind::Container, id, state, labels)?);
        }
        Ok(items)
    }
}

/// `None`: it belongs to no pod.
fn item<'a>(
    kind: ItemKind,
    id: &'a Bytes,
    state: ListedState,
    labels: &'a [Label],
) -> Result<Option<ListedItem<'a>>, Error> {
    let label = |key: &str| -> Result<Option<&'a str>, Error> {
        // As in a map, the last of several counts.
        let found = labels.iter().rev().find(|label| label.key == key.as_bytes());
        let value = found.map(|label| text(kind, &label.value)).transpose()?;
        Ok(value.filter(|value| !value.is_empty()))
    };
    let owner = (label(labels::POD_UID)?, label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?);
    let (Some(pod), Some(namespace), Some(name)) = owner else { return Ok(None) };
    Ok(Some(ListedItem { pod, namespace, name, kind, id: text(kind, id)?, state }))
}

fn text(kind: ItemKind, bytes: &Bytes) -> Result<&str, Error> {
    let call = match kind {
        ItemKind::Sandbox => "ListPodSandbox",
        ItemKind::Container => "ListContainers",
    };
    std::str::from_utf8(bytes).map_err(|_| Error::bad_reply(call, "", "a field is not UTF-8"))
}

impl Client {
    /// The pods of the runtime.
    pub async fn list_pods(&self) -> Result<RuntimeListing, Error> {
        let list = self.pod_list().await?;
        let mut listing = RuntimeListing::default();
        listing.merge(list.items()?);
        Ok(listing)
    }

    /// Lists everything in the runtime, to be merged into an earlier list.
    pub async fn pod_list(&self) -> Result<PodList, Error> {
        let sandboxes = self.list::<_, SandboxList>(
            ("list_podsandbox", "ListPodSandbox"),
            "/runtime.v1.RuntimeService/ListPodSandbox",
            cri::ListPodSandboxRequest::default(),
        );
        let containers = self.list::<_, ContainerList>(
            ("list_containers", "ListContainers"),
            "/runtime.v1.RuntimeService/ListContainers",
            cri::ListContainersRequest::default(),
        );
        let (sandboxes, ContainerList { mut containers }) =
            tokio::try_join!(sandboxes, containers)?;
        let sandboxes = self.keep_own(sandboxes.items, SandboxItem::id_text).await;
        if self.ownership.is_some() {
            let own: HashSet<&Bytes> = sandboxes.iter().map(|sandbox| &sandbox.id).collect();
            containers.retain(|container| own.contains(&container.sandbox));
        }
        Ok(PodList { sandboxes, containers })
    }

    /// Calls the runtime and decodes the reply as `R`. `names`: of the operation and of the call.
    async fn list<Q: Message + 'static, R: Message + Default + 'static>(
        &self,
        names: (&'static str, &'static str),
        path: &'static str,
        request: Q,
    ) -> Result<R, Error> {
        let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_LIST_REPLY);
        let request = self.within(request, self.timeouts.call);
        let call = async move {
            client
                .ready()
                .await
                .map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
            client.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await
        };
        self.run(names.0, names.1, "", call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels_of(uid: &str) -> std::collections::BTreeMap<String, String> {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        [
            label("app", "x"),
            label("io.kubernetes.pod.uid", uid),
            label("io.kubernetes.pod.name", "p"),
            label("io.kubernetes.pod.namespace", "n"),
        ]
        .into()
    }

    fn decoded(sandboxes: Vec<cri::PodSandbox>, containers: Vec<cri::Container>) -> PodList {
        let sandboxes = cri::ListPodSandboxResponse { items: sandboxes }.encode_to_vec();
        let containers = cri::ListContainersResponse { containers }.encode_to_vec();
        PodList {
            sandboxes: SandboxList::decode(Bytes::from(sandboxes)).unwrap().items,
            containers: ContainerList::decode(Bytes::from(containers)).unwrap().containers,
        }
    }

    #[test]
    fn short_messages_have_the_fields_of_the_runtime_s_reply() {
        let long = [("long".to_owned(), "x".repeat(4096))];
        let sandbox = cri::PodSandbox {
            id: "s".into(),
            metadata: Some(cri::PodSandboxMetadata { name: "m".into(), ..Default::default() }),
            state: cri::PodSandboxState::SandboxNotready.into(),
            created_at: 7,
            labels: labels_of("u"),
            annotations: long.clone().into(),
            runtime_handler: "h".into(),
        };
        let container = cri::Container {
            id: "c".into(),
            pod_sandbox_id: "s".into(),
            metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 3 }),
            image_ref: "i".into(),
            state: cri::ContainerState::ContainerRunning.into(),
            created_at: 7,
            labels: labels_of("u"),
            annotations: long.into(),
            ..Default::default()
        };
        let list = decoded(vec![sandbox], vec![container]);
        let of =
            |kind, id, state| ListedItem { pod: "u", namespace: "n", name: "p", kind, id, state };
        let want = [
            of(ItemKind::Sandbox, "s", ListedState::Exited),
            of(ItemKind::Container, "c", ListedState::Running),
        ];
        assert_eq!(list.items().unwrap(), want);
        assert_eq!(list.containers[0].sandbox, "s");
        let kept = list.sandboxes[0].encoded_len() + list.containers[0].encoded_len();
        assert!(kept < 400, "annotations are not kept: {kept} bytes");
    }

    #[test]
    fn object_of_no_pod_is_left_out_and_invalid_text_is_an_error() {
        let sandbox = |uid: &str| cri::PodSandbox {
            id: "s".into(),
            labels: labels_of(uid),
            ..Default::default()
        };
        assert_eq!(decoded(vec![sandbox("")], Vec::new()).items().unwrap(), []);
        let no_labels = cri::Container { id: "c".into(), ..Default::default() };
        assert_eq!(decoded(Vec::new(), vec![no_labels]).items().unwrap(), []);
        let mut list = decoded(vec![sandbox("u")], Vec::new());
        list.sandboxes[0].id = Bytes::from_static(b"\xff");
        assert!(list.items().is_err());
    }
}
