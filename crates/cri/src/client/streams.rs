//! Streaming URLs (exec, attach, port-forward) and container stats.
//!
//! The runtime returns a URL of its own streaming server, valid for one connection. The request
//! starts nothing yet: a client that does not connect leaves nothing behind.

use podwright_core::ids::{ContainerId, SandboxId};
use podwright_proto::cri;

use super::Client;
use crate::error::Error;

/// Which streams of a process are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    /// Never together with `tty`.
    pub stderr: bool,
    pub tty: bool,
}

impl Client {
    /// A URL at which the command will run.
    pub async fn exec_url(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        streams: Streams,
    ) -> Result<String, Error> {
        let mut client = self.runtime.clone();
        let Streams { stdin, stdout, stderr, tty } = streams;
        let request = cri::ExecRequest {
            container_id: id.to_string(),
            cmd: command,
            tty,
            stdin,
            stdout,
            stderr,
        };
        let call = client.exec(self.within(request, self.timeouts.call));
        let reply = self.run("exec", "Exec", id.as_str(), call).await?;
        present("Exec", id.as_str(), reply.url)
    }

    /// A URL of the container's own streams.
    pub async fn attach_url(&self, id: &ContainerId, streams: Streams) -> Result<String, Error> {
        let mut client = self.runtime.clone();
        let Streams { stdin, stdout, stderr, tty } = streams;
        let request =
            cri::AttachRequest { container_id: id.to_string(), tty, stdin, stdout, stderr };
        let call = client.attach(self.within(request, self.timeouts.call));
        let reply = self.run("attach", "Attach", id.as_str(), call).await?;
        present("Attach", id.as_str(), reply.url)
    }

    /// A URL that forwards to ports of the sandbox.
    pub async fn port_forward_url(&self, id: &SandboxId, ports: Vec<i32>) -> Result<String, Error> {
        let mut client = self.runtime.clone();
        let request = cri::PortForwardRequest { pod_sandbox_id: id.to_string(), port: ports };
        let call = client.port_forward(self.within(request, self.timeouts.call));
        let reply = self.run("port_forward", "PortForward", id.as_str(), call).await?;
        present("PortForward", id.as_str(), reply.url)
    }

    /// Usage of all containers, as measured by the runtime.
    pub async fn container_stats(&self) -> Result<Vec<cri::ContainerStats>, Error> {
        let mut client = self.runtime_lists();
        let request = cri::ListContainerStatsRequest { filter: None };
        let call = client.list_container_stats(self.within(request, self.timeouts.call));
        let reply = self.run("list_container_stats", "ListContainerStats", "", call).await?;
        Ok(reply.stats)
    }
}

fn present(call: &'static str, object: &str, url: String) -> Result<String, Error> {
    if url.is_empty() {
        return Err(Error::bad_reply(call, object, "url is not set"));
    }
    Ok(url)
}
