//! Connections: taken in within bounds, served, and let go when the daemon goes.
//!
//! A connection that says nothing, or does not take what it is told, is closed after a while; one whose client has not
//! shown a credential is closed sooner. Which connections have a place is decided in `admission`. What is asked over a
//! connection is not known here.

use std::{
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tower_service::Service as _;

use super::{
    Service,
    admission::{Admission, ConnectionPlaces},
    router,
};

/// The connection that a request came over.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// The client's address.
    pub(super) client: Option<IpAddr>,
    /// The address that the client connected to.
    pub(super) ours: Option<IpAddr>,
    pub(super) admission: Arc<Admission>,
}

/// The most that a request's head may have, and that is kept for a client which does not read.
const HEAD: usize = 64 << 10;
/// The most header lines that a request may have.
const HEADERS: usize = 100;
/// How long answers that are under way may take when the daemon goes.
const GRACE: Duration = Duration::from_secs(10);
/// How long a connection may take until its client has shown a credential, unless `patience_sec` is shorter.
const UNPROVEN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait when the system has no descriptors left.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until the future ends, and lets requests that are under way be answered.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    until: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let places = ConnectionPlaces::new(service.settings.max_connections);
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
        let Ok((stream, _)) = accepted else {
            // A client hung up at once, or there are no descriptors: neither is a reason to stop serving.
            sleep(BREATH).await;
            continue;
        };
        let (router, gone, admission) = (router.clone(), gone.clone(), places.admit());
        connections.spawn(converse(stream, admission, router, patience, gone));
    }
    drop(listener);
    going.send_replace(true);
    let _cut_off_when_dropped =
        timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn converse(
    stream: TcpStream,
    admission: Arc<Admission>,
    router: Router,
    patience: Duration,
    mut gone: watch::Receiver<bool>,
) {
    // Without it, answers are merely slower.
    stream.set_nodelay(true).ok();
    let connection = Connection {
        client: stream.peer_addr().ok().map(|address| address.ip()),
        ours: stream.local_addr().ok().map(|address| address.ip()),
        admission: admission.clone(),
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(connection.clone());
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
        () = admission.expired(patience.min(UNPROVEN_TIMEOUT)) => return,
        _ = gone.wait_for(|gone| *gone) => connection.as_mut().graceful_shutdown(),
    }
    let _hung_up = connection.await;
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
