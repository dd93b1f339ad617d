//! A listener whose connections can be reset from inside a handler.
//!
//! An HTTP server normally ends a connection politely. Some faults need the rude end: a TCP reset. A handler gets
//! its [`Connection`] through axum's connect info, marks it, and then fails its body; the socket is then dropped
//! with `SO_LINGER` 0, which makes the kernel send RST instead of FIN.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

pub(crate) struct FaultListener(pub(crate) TcpListener);

impl Listener for FaultListener {
    type Io = FaultStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.0).await;
        // Each event must leave at once, or the order "event, then cut" cannot be seen by the client.
        let _best_effort = stream.set_nodelay(true);
        let connection = Connection::default();
        (FaultStream { stream, connection }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A handler's grip on the connection its request came by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    reset: Arc<AtomicBool>,
}

impl Connection {
    /// From now on the end of this connection is a reset.
    pub(crate) fn end_with_reset(&self) {
        self.reset.store(true, Ordering::SeqCst);
    }
}

impl Connected<IncomingStream<'_, FaultListener>> for Connection {
    fn connect_info(stream: IncomingStream<'_, FaultListener>) -> Self {
        stream.io().connection.clone()
    }
}

pub(crate) struct FaultStream {
    stream: TcpStream,
    connection: Connection,
}

impl FaultStream {
    fn must_reset(&self) -> bool {
        self.connection.reset.load(Ordering::SeqCst)
    }
}

impl Drop for FaultStream {
    fn drop(&mut self) {
        if self.must_reset() {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let _best_effort = setsockopt(&self.stream, sockopt::Linger, &linger);
        }
    }
}

impl AsyncRead for FaultStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for FaultStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.must_reset() {
            // A shutdown would send FIN first.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
