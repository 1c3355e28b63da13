//! Carries bytes between two ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// One for each direction of a stream.
const BUFFER: usize = 16 * 1024;

/// Waits for the client's side to open, then carries until one side ends or both are silent for
/// too long. Whatever ends it, both connections are closed when this returns or is dropped.
pub(super) async fn both_ways(client: OnUpgrade, runtime: Upgraded, idle: Option<Duration>) {
    let client = match client.await {
        Ok(client) => client,
        Err(error) => return tracing::debug!(%error, "the client left before its stream opened"),
    };
    match between(TokioIo::new(client), TokioIo::new(runtime), idle).await {
        Ok(End::Closed) => {}
        Ok(End::Idle) => tracing::info!("a stream was silent for too long and is closed"),
        // Clients vanish; that is no trouble of ours.
        Err(error) => tracing::debug!(%error, "a stream broke"),
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
    let moved = {
        let last = last.clone();
        move || last.store(millis(began.elapsed()), Relaxed)
    };
    let from_client = async {
        match copy(from_client, to_runtime, &moved).await {
            // Who hears no more may have said something that is still on its way.
            Err(Broken::Writing(_)) => std::future::pending().await,
            ended => ended,
        }
    };
    let ended = tokio::select! {
        // Either end: a protocol that half-closes does so inside its own frames.
        ended = from_client => ended,
        ended = copy(from_runtime, to_client, &moved) => ended,
        () = silence(began, &last, idle) => return Ok(End::Idle),
    };
    match ended {
        Ok(()) => Ok(End::Closed),
        Err(Broken::Reading(error) | Broken::Writing(error)) => Err(error),
    }
}

/// Where it broke.
enum Broken {
    Reading(io::Error),
    Writing(io::Error),
}

/// To the end of `from`; what was read is written before more is read.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &impl Fn(),
) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await.map_err(Broken::Reading)?;
        moved();
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
            // It is over, whether the other side hears of it or not.
            return to.shutdown().await.map_err(Broken::Reading);
        };
        to.write_all(piece).await.map_err(Broken::Writing)?;
        to.flush().await.map_err(Broken::Writing)?;
        moved();
    }
}

/// Returns when nothing was carried for so long. It looks only when it might have to.
async fn silence(began: Instant, last: &AtomicU64, idle: Option<Duration>) {
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
    async fn the_last_words_of_a_process_arrive() {
        let Scene { mut client, mut runtime, carried } = scene(None);
        let writer = tokio::spawn(async move {
            runtime.write_all(&[7; 100_000]).await.unwrap();
            // And gone.
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, vec![7; 100_000]);
        writer.await.unwrap();
        assert_eq!(carried.await.unwrap().unwrap(), End::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_hears_no_more_is_heard_to_its_end() {
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
    async fn who_reads_nothing_is_sent_no_more_than_a_buffer() {
        let Scene { client, mut runtime, carried } = scene(Some(HOUR));
        let mut taken = 0;
        let piece = vec![0; 1024];
        while tokio::time::timeout(Duration::from_secs(1), runtime.write_all(&piece)).await.is_ok()
        {
            taken += piece.len();
            assert!(taken <= 2 * BUFFER + 4096, "{taken} bytes are on the way");
        }
        drop(client);
        let _ = carried.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_silent_for_too_long_is_closed() {
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
