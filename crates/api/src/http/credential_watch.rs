//! Binds requests and responses in progress to their credential.
//!
//! A request is authenticated when its head has arrived. Its body, its response or its WebSocket may last for days. A
//! watch reports when the credential is revoked, replaced or expires. The request is then not executed, the response is
//! cut off, and the WebSocket is closed.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use abide_domain::time::Timestamp;
use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use tokio::{sync::watch, time::timeout};

use super::HttpState;
use crate::access::{CredentialEnd, Principal};

/// Maximum time between two checks, because the system's clock may be set.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Watches the credential of one request.
#[derive(Clone, Debug)]
pub(super) struct CredentialWatch {
    interface: HttpState,
    principal: Principal,
    changes: watch::Receiver<u64>,
}

impl CredentialWatch {
    pub(super) fn new(interface: HttpState, principal: Principal) -> Self {
        let changes = interface.0.access.changes();
        Self { interface, principal, changes }
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Completes when the credential has ended. A call after the end completes at its first poll.
    pub(super) async fn ended(&mut self) -> CredentialEnd {
        loop {
            let now = self.now();
            // The first check is after the subscription, so no change is missed.
            let expires_at = match self.interface.0.access.expiry(&self.principal, now) {
                Ok(expires_at) => expires_at,
                Err(end) => return end,
            };
            let lifetime = expires_at.map(|at| Duration::from_micros(now.span_until(at).0));
            let wait = lifetime.unwrap_or(MAX_CHECK_INTERVAL).min(MAX_CHECK_INTERVAL);
            // On timeout the credential is checked too. The sender lives as long as the interface.
            timeout(wait, self.changes.changed()).await.ok();
        }
    }

    fn check(&self) -> Result<(), CredentialEnd> {
        self.interface.0.access.expiry(&self.principal, self.now()).map(drop)
    }

    /// Checks the credential for a message on an open connection, and records a use.
    pub(super) fn check_message(&self) -> Result<(), CredentialEnd> {
        self.interface.0.access.record_use(&self.principal, self.now())
    }

    /// Cuts a streamed response off when the credential ends. The client detects it as an incomplete response.
    pub(super) fn bind(mut self, response: Response) -> Response {
        response.map(|body| match body.size_hint().exact() {
            Some(_) => body,
            None => {
                let checker = self.clone();
                Body::new(BoundBody { body, checker, ended: Box::pin(async move { self.ended().await }) })
            }
        })
    }

    fn now(&self) -> Timestamp {
        self.interface.daemon().stamp().at
    }
}

/// A streamed body that fails when its credential ends.
struct BoundBody {
    body: Body,
    checker: CredentialWatch,
    /// Wakes a body that has nothing to send.
    ended: Pin<Box<dyn Future<Output = CredentialEnd> + Send>>,
}

impl HttpBody for BoundBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let cut_off = |end: CredentialEnd| {
            Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(end.reason())))))
        };
        if let Poll::Ready(end) = self.ended.as_mut().poll(context) {
            return cut_off(end);
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match self.checker.check() {
            Err(end) if frame.is_ready() => cut_off(end),
            Ok(()) | Err(_) => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
