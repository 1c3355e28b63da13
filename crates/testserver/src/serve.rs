//! `serve` command: HTTP, gRPC health, and a TCP echo port.

mod grpc;
mod health;
mod http;
mod tcp;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use clap::Args;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::signals::Stop;
use health::Health;

/// Time limit for requests in progress at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Serve {
    /// HTTP port; 8080 if no port is given at all; 0 for any free port, which is printed
    #[arg(long, value_name = "PORT")]
    http: Vec<u16>,
    /// TCP echo port
    #[arg(long, value_name = "PORT")]
    tcp: Vec<u16>,
    /// gRPC health port
    #[arg(long, value_name = "PORT")]
    grpc: Vec<u16>,
    /// Not ready before this time
    #[arg(long, value_name = "SECONDS", value_parser = crate::seconds)]
    ready_after: Option<Duration>,
    /// Not live after this time
    #[arg(long, value_name = "SECONDS", value_parser = crate::seconds)]
    fail_after: Option<Duration>,
    /// A file that exists while the server is live
    #[arg(long, value_name = "FILE")]
    health_file: Option<PathBuf>,
    /// The page at /; by default a greeting with the pod's name
    #[arg(long, value_name = "TEXT")]
    page: Option<String>,
    /// Keep serving this long after SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = crate::seconds, default_value = "0")]
    linger: Duration,
    /// Exit code after SIGTERM
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    stop_code: u8,
    /// Print a line for each request
    #[arg(long)]
    log_requests: bool,
}

impl Serve {
    pub(crate) async fn run(mut self, stop: &mut Stop) -> anyhow::Result<u8> {
        if self.http.is_empty() && self.tcp.is_empty() && self.grpc.is_empty() {
            self.http.push(8080);
        }
        let health = Arc::new(Health::new(self.ready_after.is_none()));
        let (exit, mut exit_asked) = watch::channel(None);
        let (end, ended) = watch::channel(false);

        let mut schedule = JoinSet::new();
        health.schedule(&mut schedule, self.ready_after, self.fail_after, self.health_file.take());

        let page = self.page.take().unwrap_or_else(greeting);
        let web = http::router(page, Arc::clone(&health), exit, self.log_requests);
        let checks = grpc::router(Arc::clone(&health));
        let mut servers = JoinSet::new();
        for (kind, ports, router) in [("http", &self.http, &web), ("grpc", &self.grpc, &checks)] {
            for port in ports {
                let listener = listen(kind, *port).await?;
                servers.spawn(serve_until_ended(listener, router.clone(), ended.clone()));
            }
        }
        for port in &self.tcp {
            servers.spawn(tcp::echo(listen("tcp", *port).await?, ended.clone()));
        }

        let code = tokio::select! {
            code = exit_code(&mut exit_asked) => code,
            () = stop.requested() => {
                println!("asked to stop");
                tokio::time::sleep(self.linger).await;
                self.stop_code
            }
        };
        end.send_replace(true);
        let farewell = async { while servers.join_next().await.is_some() {} };
        // Connections that are still open are closed with the process.
        let _cut_off = tokio::time::timeout(DRAIN_LIMIT, farewell).await;
        Ok(code)
    }
}

async fn serve_until_ended(
    listener: TcpListener,
    router: Router,
    mut ended: watch::Receiver<bool>,
) {
    let until = async move {
        // An error means that the sender is dropped, which also is the end.
        let _gone = ended.wait_for(|ended| *ended).await;
    };
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(until).await {
        println!("server ended: {error}");
    }
}

/// The exit code of the first request for one.
async fn exit_code(asked: &mut watch::Receiver<Option<u8>>) -> u8 {
    let code = asked.wait_for(Option::is_some).await.ok().and_then(|code| *code);
    match code {
        Some(code) => code,
        None => std::future::pending().await,
    }
}

/// On every address of both families, or of IPv4 if the kernel has no IPv6.
async fn listen(kind: &str, port: u16) -> anyhow::Result<TcpListener> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(e) if e.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
    .with_context(|| format!("cannot listen on port {port} for {kind}"))?;
    println!("{kind} on port {}", listener.local_addr()?.port());
    Ok(listener)
}

/// `hello from web-0`: the pod name from the environment, or the host name.
fn greeting() -> String {
    let name = std::env::var("POD_NAME").ok().or_else(host_name);
    format!("hello from {}\n", name.as_deref().unwrap_or("nowhere"))
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned())
}
