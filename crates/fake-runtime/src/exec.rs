//! Exec commands in containers.

use std::sync::Arc;
use std::time::Duration;

use podwright_proto::cri;
use tonic::Status;

use super::containers::State;
use super::events::EventKind;
use super::options::ExecCall;
use super::runtime_state::RuntimeState;
use super::script::ExecReply;
use super::serve::{Pace, Shared};

pub(super) async fn exec(
    shared: Arc<Shared>,
    request: cri::ExecSyncRequest,
    pace: Pace,
) -> Result<cri::ExecSyncResponse, Status> {
    let id = request.container_id;
    let (scripted, call, mut exited) = shared.runtime_state.lock().begin_exec(&id, request.cmd)?;
    pace.keep().await;
    let exec_handler = shared.runtime_state.lock().exec_handler.clone();
    // Not under the lock: the callback may access the fake.
    let answer = exec_handler.and_then(|answer| answer(&call));
    let reply = answer.unwrap_or(scripted);
    let timeout = u64::try_from(request.timeout).ok().filter(|seconds| *seconds > 0);
    let ends = tokio::time::sleep(reply.takes);
    let died = exited.wait_for(|exited| *exited);
    let limit = async {
        match timeout {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! { biased;
        // It ends with its container.
        _ = died => ExecReply::exits(137),
        () = ends => reply,
        () = limit => {
            shared.runtime_state.lock().publish_exec(&id, 137);
            let text = format!(
                "failed to exec in container: timeout {}s exceeded: context deadline exceeded",
                request.timeout
            );
            return Err(Status::deadline_exceeded(text));
        }
    };
    shared.runtime_state.lock().publish_exec(&id, result.exit_code);
    Ok(cri::ExecSyncResponse {
        exit_code: result.exit_code,
        stdout: result.stdout.into_bytes(),
        stderr: result.stderr.into_bytes(),
    })
}

impl RuntimeState {
    fn begin_exec(
        &self,
        id: &str,
        command: Vec<String>,
    ) -> Result<(ExecReply, ExecCall, tokio::sync::watch::Receiver<bool>), Status> {
        let Some(container) = self.containers.get(id) else {
            let text = format!(
                "failed to exec in container: failed to find container {id:?} in store: not found"
            );
            return Err(Status::not_found(text));
        };
        if container.state != State::Running {
            let state = container.state.on_wire().as_str_name();
            let text = format!("failed to exec in container: container is in {state} state");
            return Err(Status::unknown(text));
        }
        let scripted = container.script.reply_to(&command);
        let call = ExecCall {
            pod: container.pod.clone(),
            container: container.name.clone(),
            container_id: id.to_owned(),
            command,
        };
        Ok((scripted, call, container.exit_watch()))
    }

    fn publish_exec(&mut self, container: &str, code: i32) {
        let id = self.ids.hex64();
        self.publish(&EventKind::Exec { id, code }, container);
    }
}
