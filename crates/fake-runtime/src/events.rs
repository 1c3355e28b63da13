//! Event streams: the CRI's own, and containerd's.
//!
//! Both report the same events. As in real runtimes, nothing is replayed, and a stream that broke
//! has missed everything that happened meanwhile.

use jiff::Timestamp;
use podwright_proto::containerd_events as containerd;
use podwright_proto::cri;
use prost::Message;
use tokio::sync::mpsc;
use tonic::Status;

/// containerd's namespace of everything the CRI runs.
const NAMESPACE: &str = "k8s.io";

/// What happened to a container or a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Created,
    Started,
    RanOutOfMemory,
    Exited {
        code: i32,
    },
    Deleted,
    /// An exec process started and ended.
    Exec {
        id: String,
        code: i32,
    },
}

/// One event, in the form of each stream.
#[derive(Clone, Debug)]
pub(super) struct RuntimeEvent {
    pub(super) envelopes: Vec<containerd::Envelope>,
    pub(super) event: Option<cri::ContainerEventResponse>,
}

#[derive(Debug, Default)]
pub(super) struct Hub {
    containerd: Vec<(Vec<Filter>, mpsc::UnboundedSender<containerd::Envelope>)>,
    cri: Vec<mpsc::UnboundedSender<cri::ContainerEventResponse>>,
}

impl Hub {
    pub(super) fn follow_containerd(
        &mut self,
        filters: &[String],
    ) -> Result<mpsc::UnboundedReceiver<containerd::Envelope>, Status> {
        let filters = filters.iter().map(|text| Filter::parse(text)).collect::<Result<_, _>>()?;
        let (sender, receiver) = mpsc::unbounded_channel();
        self.containerd.push((filters, sender));
        Ok(receiver)
    }

    pub(super) fn follow_cri(&mut self) -> mpsc::UnboundedReceiver<cri::ContainerEventResponse> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.cri.push(sender);
        receiver
    }

    /// Whether there are subscribers of containerd's stream, and of the CRI's.
    pub(super) fn followed(&self) -> (bool, bool) {
        (!self.containerd.is_empty(), !self.cri.is_empty())
    }

    pub(super) fn publish(&mut self, event_message: &RuntimeEvent) {
        for envelope in &event_message.envelopes {
            self.containerd.retain(|(filters, follower)| {
                let wanted = filters.is_empty() || filters.iter().any(|f| f.admits(envelope));
                if wanted { follower.send(envelope.clone()).is_ok() } else { !follower.is_closed() }
            });
        }
        if let Some(event) = &event_message.event {
            self.cri.retain(|follower| follower.send(event.clone()).is_ok());
        }
    }

    /// Drops all subscribers: the runtime went down.
    pub(super) fn clear(&mut self) {
        self.containerd.clear();
        self.cri.clear();
    }
}

/// What containerd publishes when this happens to the task of `id`.
pub(super) fn envelopes(
    what: &EventKind,
    id: &str,
    pid: u32,
    at: Timestamp,
) -> Vec<containerd::Envelope> {
    let container_id = id.to_owned();
    let stamp = prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() };
    let seal = |topic: &str, name: &str, event: Vec<u8>| containerd::Envelope {
        timestamp: Some(stamp),
        namespace: NAMESPACE.into(),
        topic: topic.into(),
        event: Some(prost_types::Any {
            type_url: format!("containerd.events.{name}"),
            value: event,
        }),
    };
    let exit = |id: &str, code: i32| {
        let exit_status = code.cast_unsigned();
        let (container_id, id) = (container_id.clone(), id.to_owned());
        let exited_at = Some(stamp);
        containerd::TaskExit { container_id, id, pid, exit_status, exited_at }.encode_to_vec()
    };
    let delete = |id: &str, code: i32| {
        let exit_status = code.cast_unsigned();
        let (container_id, id) = (container_id.clone(), id.to_owned());
        let exited_at = Some(stamp);
        containerd::TaskDelete { container_id, id, pid, exit_status, exited_at }.encode_to_vec()
    };
    match what {
        // They concern containerd's container, not its task.
        EventKind::Created | EventKind::Deleted => vec![],
        EventKind::Started => {
            let create = containerd::TaskCreate { container_id: container_id.clone(), pid };
            let start = containerd::TaskStart { container_id: container_id.clone(), pid };
            vec![
                seal("/tasks/create", "TaskCreate", create.encode_to_vec()),
                seal("/tasks/start", "TaskStart", start.encode_to_vec()),
            ]
        }
        EventKind::RanOutOfMemory => {
            let oom = containerd::TaskOom { container_id: container_id.clone() };
            vec![seal("/tasks/oom", "TaskOOM", oom.encode_to_vec())]
        }
        EventKind::Exited { code } => vec![
            seal("/tasks/exit", "TaskExit", exit(id, *code)),
            seal("/tasks/delete", "TaskDelete", delete("", *code)),
        ],
        EventKind::Exec { id: exec_id, code } => {
            let added = containerd::TaskExecAdded {
                container_id: container_id.clone(),
                exec_id: exec_id.clone(),
            };
            let started = containerd::TaskExecStarted {
                container_id: container_id.clone(),
                exec_id: exec_id.clone(),
                pid,
            };
            vec![
                seal("/tasks/exec-added", "TaskExecAdded", added.encode_to_vec()),
                seal("/tasks/exec-started", "TaskExecStarted", started.encode_to_vec()),
                seal("/tasks/exit", "TaskExit", exit(exec_id, *code)),
                seal("/tasks/delete", "TaskDelete", delete(exec_id, *code)),
            ]
        }
    }
}

/// The CRI's event type, if it has one.
pub(super) fn event_type(what: &EventKind) -> Option<cri::ContainerEventType> {
    match what {
        EventKind::Created => Some(cri::ContainerEventType::ContainerCreatedEvent),
        EventKind::Started => Some(cri::ContainerEventType::ContainerStartedEvent),
        EventKind::Exited { .. } => Some(cri::ContainerEventType::ContainerStoppedEvent),
        EventKind::Deleted => Some(cri::ContainerEventType::ContainerDeletedEvent),
        EventKind::RanOutOfMemory | EventKind::Exec { .. } => None,
    }
}

/// One of containerd's filters: conditions of which all must hold.
#[derive(Debug)]
struct Filter(Vec<Condition>);

#[derive(Debug)]
struct Condition {
    field: Field,
    test: Test,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Namespace,
    Topic,
}

#[derive(Debug)]
enum Test {
    Is(String),
    IsNot(String),
    StartsWith(String),
    Contains(String),
}

impl Filter {
    fn parse(text: &str) -> Result<Self, Status> {
        text.split(',').map(Condition::parse).collect::<Result<_, _>>().map(Self)
    }

    fn admits(&self, envelope: &containerd::Envelope) -> bool {
        self.0.iter().all(|condition| {
            let value = match condition.field {
                Field::Namespace => envelope.namespace.as_str(),
                Field::Topic => envelope.topic.as_str(),
            };
            match &condition.test {
                Test::Is(want) => value == want,
                Test::IsNot(other) => value != other,
                Test::StartsWith(start) => value.starts_with(start.as_str()),
                Test::Contains(part) => value.contains(part.as_str()),
            }
        })
    }
}

impl Condition {
    fn parse(text: &str) -> Result<Self, Status> {
        let bad = || Status::invalid_argument(format!("filter {text:?} is not supported"));
        let operator = ["==", "!=", "~="].into_iter().find(|op| text.contains(op));
        let operator = operator.ok_or_else(bad)?;
        let (field, value) = text.split_once(operator).ok_or_else(bad)?;
        let field = match field {
            "namespace" => Field::Namespace,
            "topic" => Field::Topic,
            _ => return Err(bad()),
        };
        let value = unquoted(value);
        let test = match operator {
            "==" => Test::Is(value.into()),
            "!=" => Test::IsNot(value.into()),
            // Of regular expressions, only those without special characters are supported.
            _ => match value.strip_prefix('^') {
                _ if value.trim_start_matches('^').contains(is_special) => return Err(bad()),
                Some(start) => Test::StartsWith(start.into()),
                None => Test::Contains(value.into()),
            },
        };
        Ok(Self { field, test })
    }
}

fn is_special(c: char) -> bool {
    "\\.+*?()|[]{}^$".contains(c)
}

/// A value may be in double quotes, and a regular expression between bars or slashes.
fn unquoted(value: &str) -> &str {
    let quotes = ['"', '|', '/'];
    let inner = quotes.iter().find_map(|&q| value.strip_prefix(q)?.strip_suffix(q));
    inner.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_requires_all_of_its_conditions() {
        let envelope = containerd::Envelope {
            namespace: NAMESPACE.into(),
            topic: "/tasks/exit".into(),
            ..Default::default()
        };
        for (filter, want) in [
            ("namespace==k8s.io,topic~=|^/tasks/|", Some(true)),
            ("namespace==moby,topic~=|^/tasks/|", Some(false)),
            ("topic==\"/tasks/exit\"", Some(true)),
            ("topic!=/tasks/exit", Some(false)),
            ("topic~=exit", Some(true)),
            ("topic~=|^/images/|", Some(false)),
            ("topic~=|/tasks/(exit|oom)|", None),
            ("event.id==1", None),
            ("nonsense", None),
        ] {
            let admitted = Filter::parse(filter).ok().map(|filter| filter.admits(&envelope));
            assert_eq!(admitted, want, "{filter}");
        }
    }

    #[test]
    fn disconnected_subscriber_gets_no_more_events() {
        let mut hub = Hub::default();
        drop(hub.follow_containerd(&[]).unwrap());
        drop(hub.follow_cri());
        let what = EventKind::Exited { code: 1 };
        let event_message = RuntimeEvent {
            envelopes: envelopes(&what, "c1", 7, Timestamp::UNIX_EPOCH),
            event: Some(cri::ContainerEventResponse::default()),
        };
        hub.publish(&event_message);
        assert!(hub.containerd.is_empty() && hub.cri.is_empty());
    }
}
