//! TCP echo port: for tcpSocket probes and port forwarding.

use tokio::net::TcpListener;
use tokio::sync::watch;

pub(super) async fn echo(listener: TcpListener, mut ended: watch::Receiver<bool>) {
    loop {
        // Both arms are cancel-safe: a connection not yet accepted stays in the kernel's queue.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ended.wait_for(|ended| *ended) => return,
        };
        match accepted {
            Ok((mut stream, _)) => {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    // A closed connection is not an error.
                    let _hung_up = tokio::io::copy(&mut from, &mut to).await;
                });
            }
            Err(error) => {
                println!("cannot accept: {error}");
                return;
            }
        }
    }
}
