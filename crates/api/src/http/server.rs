//! Accepts and serves connections, and closes them at shutdown.
//!
//! A connection that sends nothing, or does not receive its response, is closed after a timeout. The timeout is shorter
//! until the client has authenticated. Slots are assigned in `admission`. Requests are interpreted elsewhere.

use std::{
    io,
    net::IpAddr,
    os::fd::AsFd,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, header},
    response::IntoResponse,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tower_service::Service as _;

use super::{
    HttpService,
    admission::{ConnectionLimiter, ConnectionPermit},
    problem::{HttpProblem, ProblemCode},
    router,
};

/// The connection of a request.
#[derive(Clone, Debug)]
pub(super) struct HttpConnection {
    pub(super) origin: ConnectionOrigin,
    pub(super) permit: Arc<ConnectionPermit>,
}

/// Origin of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionOrigin {
    /// The Unix socket, whose listener has checked the peer. Browsers cannot connect to it.
    Local,
    Network {
        client_ip: Option<IpAddr>,
        local_ip: Option<IpAddr>,
    },
}

impl ConnectionOrigin {
    pub(super) fn client(self) -> Option<IpAddr> {
        match self {
            Self::Local => None,
            Self::Network { client_ip: client, .. } => client,
        }
    }
}

/// A Unix socket for clients on this machine.
#[derive(Debug)]
pub struct LocalListener {
    pub listener: UnixListener,
    /// Returns the reason if a peer is refused.
    pub check_peer: fn(&dyn AsFd) -> Option<String>,
}

impl LocalListener {
    async fn accept(local: Option<&Self>) -> io::Result<(UnixStream, Option<String>)> {
        let Some(local) = local else { return std::future::pending().await };
        let (stream, _) = local.listener.accept().await?;
        let refusal = (local.check_peer)(&stream);
        Ok((stream, refusal))
    }
}

/// Maximum size of a request head and of the write buffer of a connection, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum number of header lines.
const MAX_HEADERS: usize = 100;
/// Time limit for responses in progress at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Authentication timeout of a connection, unless `idle_timeout_sec` is shorter.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the next accept after a failure, such as no free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves until the future completes, then finishes requests in progress.
pub async fn serve(
    listener: TcpListener,
    local: Option<LocalListener>,
    service: HttpService,
    until: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let limiter = ConnectionLimiter::new(service.settings.max_connections);
    // Separate slots, so that TCP connections cannot exhaust those of local commands.
    let local_limiter = ConnectionLimiter::new(service.settings.max_connections);
    let idle_timeout = Duration::from_secs(u64::from(service.settings.idle_timeout_sec));
    let router = router(service);
    let (shutdown_sender, shutdown) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut until = pin!(until);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.map(|(stream, _)| AcceptedStream::Network(stream)),
            accepted = LocalListener::accept(local.as_ref()) => {
                accepted.map(|(stream, refusal)| AcceptedStream::Local(stream, refusal))
            }
            Some(_) = connections.join_next() => continue,
            () = &mut until => break,
        };
        let (router, shutdown) = (router.clone(), shutdown.clone());
        match accepted {
            Ok(AcceptedStream::Network(stream)) => {
                // If this fails, responses are only slower.
                stream.set_nodelay(true).ok();
                let origin = ConnectionOrigin::Network {
                    client_ip: stream.peer_addr().ok().map(|address| address.ip()),
                    local_ip: stream.local_addr().ok().map(|address| address.ip()),
                };
                let connection = HttpConnection { origin, permit: limiter.admit() };
                connections.spawn(serve_connection(stream, connection, router, idle_timeout, shutdown));
            }
            Ok(AcceptedStream::Local(stream, None)) => {
                let connection =
                    HttpConnection { origin: ConnectionOrigin::Local, permit: local_limiter.admit() };
                connections.spawn(serve_connection(stream, connection, router, idle_timeout, shutdown));
            }
            Ok(AcceptedStream::Local(stream, Some(reason))) => {
                let admission = local_limiter.admit();
                connections.spawn(async move {
                    tokio::select! {
                        // An error means that the client disconnected.
                        _ = reject_peer(stream, reason) => {}
                        () = admission.wait_for_expiry(AUTHENTICATION_TIMEOUT) => {}
                    }
                });
            }
            // The client disconnected early, or no file descriptors are free. Neither stops the server.
            Err(_) => sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
    drop((listener, local));
    shutdown_sender.send_replace(true);
    // Connections that do not end in time are aborted when the set is dropped.
    timeout(SHUTDOWN_GRACE, async { while connections.join_next().await.is_some() {} }).await.ok();
    Ok(())
}

enum AcceptedStream {
    Network(TcpStream),
    /// Holds the reason if the peer is refused.
    Local(UnixStream, Option<String>),
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    connection: HttpConnection,
    router: Router,
    timeout: Duration,
    mut shutdown: watch::Receiver<bool>,
) {
    let admission = connection.permit.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(connection.clone());
        router.clone().call(request)
    });
    let io = TokioIo::new(IdleTimeoutStream { stream, timeout, blocked_write_timer: None });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        _hung_up = connection.as_mut() => return,
        () = admission.wait_for_expiry(timeout.min(AUTHENTICATION_TIMEOUT)) => return,
        _ = shutdown.wait_for(|shutdown| *shutdown) => connection.as_mut().graceful_shutdown(),
    }
    // An error means that the client closed the connection.
    connection.await.ok();
}

/// Sends the reason for the refusal, whatever the request is.
async fn reject_peer(mut stream: UnixStream, reason: String) -> io::Result<()> {
    let problem = HttpProblem::new(ProblemCode::ForbiddenPeer, reason);
    let status = problem.code.status_and_code().0;
    let response = problem.into_response();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().to_owned();
    let body = axum::body::to_bytes(response.into_body(), MAX_HEAD_BYTES).await.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len(),
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // The input must be drained: closing a socket with unread input discards the response.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// A stream that fails if the peer accepts no data for the timeout.
struct IdleTimeoutStream<S> {
    stream: S,
    timeout: Duration,
    /// Runs while a write is blocked.
    blocked_write_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> IdleTimeoutStream<S> {
    fn apply_write_timeout(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.blocked_write_timer = None;
            return written;
        }
        let timeout = self.timeout;
        let timer = self.blocked_write_timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.apply_write_timeout(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.apply_write_timeout(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
