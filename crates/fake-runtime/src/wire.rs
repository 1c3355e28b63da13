//! In-memory connections that can be cut.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// About the size of a socket buffer.
const BUFFER: usize = 64 * 1024;

/// One connection, as seen by its calls.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) id: u64,
    cut: CancellationToken,
}

impl Line {
    pub(super) fn new(id: u64) -> Self {
        Self { id, cut: CancellationToken::new() }
    }

    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }
}

/// The server's end of a connection.
pub(super) struct Wire {
    io: DuplexStream,
    line: Line,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Wire {
    /// Both ends of a new connection: the client's and the server's.
    pub(super) fn pair(line: Line) -> (DuplexStream, Self) {
        let (near, far) = tokio::io::duplex(BUFFER);
        let cut = Box::pin(line.cut.clone().cancelled_owned());
        (near, Self { io: far, line, cut })
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Wire {
    type ConnectInfo = Line;

    fn connect_info(&self) -> Line {
        self.line.clone()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
