//! Runtime events as hints.
//!
//! An event is a hint, never a fact: it says *which* pod to inspect, and the inspection yields the
//! state. So a lost, duplicate or late event costs only time, and the slow relist catches up.

use futures::stream::{BoxStream, Stream, StreamExt, TryStreamExt};
use podwright_core::ids::PodUid;
use podwright_proto::containerd_events as containerd;
use podwright_proto::containerd_events::events_client::EventsClient;
use podwright_proto::cri;
use podwright_proto::cri::runtime_service_client::RuntimeServiceClient;
use prost::Message;
use tonic::Request;

use crate::client::Client;
use crate::error::{Error, Kind};

/// What to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    Pod(PodUid),
    /// A container or sandbox, by runtime id; the receiver maps it to a pod.
    Id(String),
    /// The same, for one that has ended. containerd publishes the exit while its CRI plugin, which
    /// gets the same event, has not yet recorded it: an immediate inspection may come too early.
    Ended(String),
}

pub type Hints = BoxStream<'static, Result<Hint, Error>>;

/// containerd serves several clients; the CRI's containers are in this namespace.
const CRI_NAMESPACE: &str = "k8s.io";

impl Client {
    /// The runtime's events: the CRI's own where it has them, else containerd's.
    pub async fn hints(&self, runtime_name: &str) -> Result<Hints, Error> {
        let hints = match self.cri_hints().await {
            Err(error) if error.kind == Kind::Unimplemented && runtime_name == "containerd" => {
                self.containerd_hints().await
            }
            other => other,
        };
        Ok(until_error(hints?).boxed())
    }

    async fn cri_hints(&self) -> Result<Hints, Error> {
        const CALL: &str = "GetContainerEvents";
        let mut client = RuntimeServiceClient::new(self.channel.clone());
        let reply = client.get_container_events(Request::new(cri::GetEventsRequest {})).await;
        let failed = |status: &tonic::Status| Error::from_status(CALL, "", status);
        let mut stream = reply.map_err(|status| failed(&status))?.into_inner();
        // A runtime without the call reports that only with the first message.
        let first = match futures::poll!(stream.next()) {
            std::task::Poll::Ready(Some(Err(status))) => return Err(failed(&status)),
            std::task::Poll::Ready(Some(Ok(event))) => Some(event),
            std::task::Poll::Ready(None) | std::task::Poll::Pending => None,
        };
        let rest = stream.map_err(move |status| failed(&status));
        let all = futures::stream::iter(first.map(Ok)).chain(rest);
        Ok(all.map_ok(cri_hint).boxed())
    }

    async fn containerd_hints(&self) -> Result<Hints, Error> {
        const CALL: &str = "Events/Subscribe";
        let mut client = EventsClient::new(self.channel.clone());
        let filters = vec![format!("namespace=={CRI_NAMESPACE},topic~=|^/tasks/|")];
        let reply = client.subscribe(Request::new(containerd::SubscribeRequest { filters })).await;
        let failed = |status: &tonic::Status| Error::from_status(CALL, "", status);
        let stream = reply.map_err(|status| failed(&status))?.into_inner();
        let hints = stream.map_err(move |status| failed(&status));
        Ok(hints.try_filter_map(|envelope| async move { Ok(containerd_hint(&envelope)) }).boxed())
    }
}

/// `stream` up to its first error, and that error. After a message that does not decode, a stream of
/// tonic returns the same error at every poll.
fn until_error<T, E>(stream: impl Stream<Item = Result<T, E>>) -> impl Stream<Item = Result<T, E>> {
    stream.scan(false, |failed, item| {
        let item = (!*failed).then_some(item);
        *failed |= matches!(item, Some(Err(_)));
        std::future::ready(item)
    })
}

fn cri_hint(event: cri::ContainerEventResponse) -> Hint {
    let uid = event.pod_sandbox_status.and_then(|s| s.metadata).map(|m| m.uid);
    match uid.filter(|uid| !uid.is_empty()) {
        Some(uid) => Hint::Pod(PodUid::new(uid)),
        None => Hint::Id(event.container_id),
    }
}

/// Only starts and exits of whole tasks matter; exec processes come and go with every probe.
fn containerd_hint(envelope: &containerd::Envelope) -> Option<Hint> {
    let payload = envelope.event.as_ref()?.value.as_slice();
    let id = match envelope.topic.as_str() {
        "/tasks/start" => containerd::TaskStart::decode(payload).ok()?.container_id,
        "/tasks/exit" => {
            let exit = containerd::TaskExit::decode(payload).ok()?;
            if exit.id != exit.container_id {
                return None;
            }
            return Some(Hint::Ended(exit.container_id));
        }
        "/tasks/oom" => containerd::TaskOom::decode(payload).ok()?.container_id,
        _ => return None,
    };
    Some(Hint::Id(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(topic: &str, event: &impl Message) -> containerd::Envelope {
        containerd::Envelope {
            topic: topic.into(),
            event: Some(prost_types::Any { type_url: String::new(), value: event.encode_to_vec() }),
            ..Default::default()
        }
    }

    #[test]
    fn exit_of_an_exec_process_is_no_hint() {
        let exit = |id: &str| containerd::TaskExit {
            container_id: "c1".into(),
            id: id.into(),
            ..Default::default()
        };
        let hint = |id| containerd_hint(&envelope("/tasks/exit", &exit(id)));
        assert_eq!(hint("c1"), Some(Hint::Ended("c1".into())));
        assert_eq!(hint("exec-7"), None);
    }

    #[test]
    fn invalid_event_is_ignored() {
        let mut garbage = envelope("/tasks/exit", &containerd::TaskStart::default());
        garbage.event.as_mut().unwrap().value = vec![0xff; 9];
        assert_eq!(containerd_hint(&garbage), None);
    }
}
