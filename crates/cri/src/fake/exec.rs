//! Commands run in containers.

use std::sync::Arc;
use std::time::Duration;

use podwright_proto::cri;
use tonic::Status;

use super::containers::State;
use super::events::What;
use super::options::ExecCall;
use super::script::ExecReply;
use super::serve::{Pace, Shared};
use super::world::World;

pub(super) async fn exec(
    shared: Arc<Shared>,
    request: cri::ExecSyncRequest,
    pace: Pace,
) -> Result<cri::ExecSyncResponse, Status> {
    let id = request.container_id;
    let (scripted, call, mut exited) = shared.world.lock().begin_exec(&id, request.cmd)?;
    pace.keep().await;
    let answerer = shared.world.lock().answerer.clone();
    // Not under the lock: the answerer may look at the fake.
    let answer = answerer.and_then(|answer| answer(&call));
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
        // It goes down with its container.
        _ = died => ExecReply::exits(137),
        () = ends => reply,
        () = limit => {
            shared.world.lock().tell_exec(&id, 137);
            let text = format!(
                "failed to exec in container: timeout {}s exceeded: context deadline exceeded",
                request.timeout
            );
            return Err(Status::deadline_exceeded(text));
        }
    };
    shared.world.lock().tell_exec(&id, result.exit_code);
    Ok(cri::ExecSyncResponse {
        exit_code: result.exit_code,
        stdout: result.stdout.into_bytes(),
        stderr: result.stderr.into_bytes(),
    })
}

impl World {
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

    fn tell_exec(&mut self, container: &str, code: i32) {
        let id = self.ids.hex64();
        self.tell(&What::Exec { id, code }, container);
    }
}
