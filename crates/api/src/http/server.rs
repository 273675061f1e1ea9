//! Connections: taken in within bounds, served, and let go when the daemon goes.
//!
//! A connection that says nothing, or does not take what it is told, is cut off after a while. One too many is told so
//! and closed. What is asked over a connection is not known here.

use std::{
    io,
    net::SocketAddr,
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
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tower_service::Service as _;

use super::{
    Service,
    problem::{Code, Problem},
    router,
};

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) client: SocketAddr,
    pub(super) ours: SocketAddr,
}

/// The most that a request's head may have, and that is kept for a client which does not read.
const HEAD: usize = 64 << 10;
/// The most header lines that a request may have.
const HEADERS: usize = 100;
/// How long answers that are under way may take when the daemon goes.
const GRACE: Duration = Duration::from_secs(10);
/// How many clients at a time are told that they are one too many; others find the door closed.
const TURNED_AWAY: usize = 16;
/// How long to wait when the system has no descriptors left.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until the future ends, and lets requests that are under way be answered.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    until: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(service.settings.max_connections));
    let doorstep = Arc::new(Semaphore::new(TURNED_AWAY));
    let patience = Duration::from_secs(u64::from(service.settings.patience_sec));
    let router = router(service);
    let (going, gone) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut until = pin!(until);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut until => break,
        };
        let Ok((stream, client)) = accepted else {
            // Somebody hung up at once, or there are no descriptors: neither is a reason to stop serving.
            sleep(BREATH).await;
            continue;
        };
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let (router, gone) = (router.clone(), gone.clone());
                connections.spawn(async move {
                    converse(stream, client, router, patience, gone).await;
                    drop(place);
                });
            }
            Err(_) => {
                if let Ok(step) = doorstep.clone().try_acquire_owned() {
                    connections.spawn(async move {
                        let _went_by_itself = timeout(BREATH * 10, turn_away(stream)).await;
                        drop(step);
                    });
                }
            }
        }
    }
    drop(listener);
    going.send_replace(true);
    let _cut_off_when_dropped =
        timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn converse(
    stream: TcpStream,
    client: SocketAddr,
    router: Router,
    patience: Duration,
    mut gone: watch::Receiver<bool>,
) {
    let Ok(ours) = stream.local_addr() else { return };
    let _slower_without = stream.set_nodelay(true);
    let ends = Ends { client, ours };
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ends);
        router.clone().call(request)
    });
    let io = TokioIo::new(Patient { stream, patience, stuck: None });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        _hung_up = connection.as_mut() => return,
        _ = gone.wait_for(|gone| *gone) => connection.as_mut().graceful_shutdown(),
    }
    let _hung_up = connection.await;
}

/// Tells one client too many that it is.
async fn turn_away(mut stream: TcpStream) -> io::Result<()> {
    let problem = Problem::new(
        Code::TooManyConnections,
        "too many connections are open (setting http.max_connections); try again",
    );
    let status = problem.code.decide().0;
    let response = problem.into_response();
    let kind =
        response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.to_owned();
    let body = axum::body::to_bytes(response.into_body(), HEAD).await.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nretry-after: 5\r\nconnection: close\r\n\r\n",
        body.len(),
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // What the client sent must be read, or the system drops what we said together with the connection.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// A connection whose other side is expected to take what it is told.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while the other side takes nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn judge(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let patience = self.patience;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(patience)));
        match stuck.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.judge(written, context)
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
