//! containerd's event service.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use podwright_proto::containerd_events as containerd;
use podwright_proto::containerd_events::events_server::Events;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};

use super::rpc::{About, Rpc};
use super::runtime_service::Served;
use super::serve::{Shared, Via};

#[tonic::async_trait]
impl Events for Served {
    type SubscribeStream = BoxStream<'static, Result<containerd::Envelope, Status>>;

    async fn subscribe(
        &self,
        request: Request<containerd::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (via, filters) = (Via::of(&request), request.into_inner().filters);
        let work = |shared: Arc<Shared>, pace: super::serve::Pace| async move {
            pace.keep().await;
            let events = shared.runtime_state.lock().hub.follow_containerd(&filters)?;
            Ok(from_first(events).await)
        };
        self.0.serve(via, Rpc::Subscribe, About::default(), work).await
    }
}

/// A stream that opens with its first event.
///
/// A server written in Go sends the headers of a streaming reply with the first message, so the
/// caller of a stream without events waits even for the stream itself. An agent has to handle that.
pub(super) async fn from_first<T: Send + 'static>(
    mut events: mpsc::UnboundedReceiver<T>,
) -> BoxStream<'static, Result<T, Status>> {
    let first = events.recv().await;
    let rest = UnboundedReceiverStream::new(events);
    stream::iter(first).chain(rest).map(Ok).boxed()
}
