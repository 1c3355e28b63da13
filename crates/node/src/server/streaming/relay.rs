//! Copying of bytes between the client and the runtime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Buffer size of each direction.
const BUFFER: usize = 16 * 1024;

/// Waits for the client's upgrade, then copies until one side closes or the stream is idle for too
/// long. Both connections are closed when this returns or is dropped.
pub(super) async fn run(client: OnUpgrade, runtime: Upgraded, idle: Option<Duration>) {
    let client = match client.await {
        Ok(client) => client,
        Err(error) => return tracing::debug!(%error, "client left before its stream opened"),
    };
    match between(TokioIo::new(client), TokioIo::new(runtime), idle).await {
        Ok(End::Closed) => {}
        Ok(End::Idle) => tracing::info!("closed idle stream"),
        // Clients disconnect at any time; that is not an error of the agent.
        Err(error) => tracing::debug!(%error, "stream broke"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Idle,
}

async fn between<A, B>(client: A, runtime: B, idle: Option<Duration>) -> io::Result<End>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let began = Instant::now();
    let last = Arc::new(AtomicU64::new(0));
    let (from_client, to_client) = tokio::io::split(client);
    let (from_runtime, to_runtime) = tokio::io::split(runtime);
    let record_activity = {
        let last = last.clone();
        move || last.store(millis(began.elapsed()), Relaxed)
    };
    let from_client = async {
        match copy(from_client, to_runtime, &record_activity).await {
            // The runtime may still have output on the way when it stops reading.
            Err(CopyError::Writing(_)) => std::future::pending().await,
            ended => ended,
        }
    };
    let ended = tokio::select! {
        // Either side ends the stream: a protocol half-closes inside its own frames.
        ended = from_client => ended,
        ended = copy(from_runtime, to_client, &record_activity) => ended,
        () = idle_timeout(began, &last, idle) => return Ok(End::Idle),
    };
    match ended {
        Ok(()) => Ok(End::Closed),
        Err(CopyError::Reading(error) | CopyError::Writing(error)) => Err(error),
    }
}

/// The failed operation.
enum CopyError {
    Reading(io::Error),
    Writing(io::Error),
}

/// Copies until the end of `from`; writes each piece before the next read.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    record_activity: &impl Fn(),
) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await.map_err(CopyError::Reading)?;
        record_activity();
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
            // The stream is complete, whether the shutdown succeeds or not.
            return to.shutdown().await.map_err(CopyError::Reading);
        };
        to.write_all(piece).await.map_err(CopyError::Writing)?;
        to.flush().await.map_err(CopyError::Writing)?;
        record_activity();
    }
}

/// Returns when nothing was copied for `idle`.
async fn idle_timeout(began: Instant, last: &AtomicU64, idle: Option<Duration>) {
    let Some(idle) = idle else { return std::future::pending().await };
    loop {
        let last = began + Duration::from_millis(last.load(Relaxed));
        if last.elapsed() >= idle {
            return;
        }
        tokio::time::sleep_until(last + idle).await;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    struct Scene {
        client: DuplexStream,
        runtime: DuplexStream,
        carried: tokio::task::JoinHandle<io::Result<End>>,
    }

    fn scene(idle: Option<Duration>) -> Scene {
        let ((client, near), (runtime, far)) = (duplex(64), duplex(64));
        Scene { client, runtime, carried: tokio::spawn(between(near, far, idle)) }
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_first_end_ends_both() {
        for client_ends in [true, false] {
            let Scene { mut client, mut runtime, carried } = scene(None);
            let mut got = [0; 5];
            client.write_all(b"hello").await.unwrap();
            runtime.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"hello");
            runtime.write_all(b"world").await.unwrap();
            client.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"world");
            let (gone, mut left) = if client_ends { (client, runtime) } else { (runtime, client) };
            drop(gone);
            assert_eq!(left.read(&mut got).await.unwrap(), 0);
            let _ = carried.await.unwrap();
        }
    }

    #[tokio::test]
    async fn all_output_of_a_process_arrives_before_close() {
        let Scene { mut client, mut runtime, carried } = scene(None);
        let writer = tokio::spawn(async move {
            runtime.write_all(&[7; 100_000]).await.unwrap();
            // Dropped here.
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, vec![7; 100_000]);
        writer.await.unwrap();
        assert_eq!(carried.await.unwrap().unwrap(), End::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_stopped_reading_is_read_to_its_end() {
        let (mut client, near) = duplex(64);
        let (mut process, ours) = duplex(64);
        let (deaf, gone) = duplex(64);
        drop(gone);
        let carried = tokio::spawn(between(near, tokio::io::join(ours, deaf), None));
        client.write_all(b"are you there?").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        process.write_all(b"I was").await.unwrap();
        drop(process);
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"I was");
        assert_eq!(carried.await.unwrap().unwrap(), End::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_sent_no_more_than_a_buffer() {
        let Scene { client, mut runtime, carried } = scene(Some(HOUR));
        let mut taken = 0;
        let piece = vec![0; 1024];
        while tokio::time::timeout(Duration::from_secs(1), runtime.write_all(&piece)).await.is_ok()
        {
            taken += piece.len();
            assert!(taken <= 2 * BUFFER + 4096, "{taken} bytes are buffered");
        }
        drop(client);
        let _ = carried.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_is_closed() {
        let Scene { mut client, mut runtime, carried } = scene(Some(HOUR));
        let began = Instant::now();
        tokio::time::sleep(HOUR - Duration::from_secs(1)).await;
        client.write_all(b"x").await.unwrap();
        let mut got = [0; 1];
        runtime.read_exact(&mut got).await.unwrap();
        assert_eq!(carried.await.unwrap().unwrap(), End::Idle);
        assert!(began.elapsed() >= 2 * HOUR - Duration::from_secs(2));
        assert_eq!(client.read(&mut got).await.unwrap(), 0);
    }
}
