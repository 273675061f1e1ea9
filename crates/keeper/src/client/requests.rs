//! The requests with one response, each paired with the type of its response.

use super::timeouts::RESPONSE_TIMEOUT_MS;
use crate::error::KeeperError;
use crate::protocol::{JobOutputRange, KeeperOwner, KeeperRequest, KeeperResponse, KeeperStatus, OutputPage};

/// Maximum number of input bytes in one request.
const MAX_INPUT_BYTES: usize = 4 << 20;

/// Sends requests to a keeper and waits for the response. A refusal is [`KeeperError::Refused`].
pub trait KeeperRequests {
    /// Sends a request and waits for its first response, which may be a refusal.
    fn exchange(&mut self, request: KeeperRequest, timeout_ms: u64) -> Result<KeeperResponse, KeeperError>;

    /// The present status.
    fn current_status(&mut self, timeout_ms: u64) -> Result<KeeperStatus, KeeperError> {
        status_of(self.exchange(KeeperRequest::Status, timeout_ms)?)
    }

    /// Changes the owner. Refused unless the present one is dead or is the caller.
    fn own(&mut self, owner: KeeperOwner, timeout_ms: u64) -> Result<KeeperStatus, KeeperError> {
        status_of(self.exchange(KeeperRequest::Own(owner), timeout_ms)?)
    }

    /// Reads from the spool.
    fn read(&mut self, range: JobOutputRange) -> Result<OutputPage, KeeperError> {
        let response = self.exchange(KeeperRequest::Read(range), RESPONSE_TIMEOUT_MS)?;
        if let KeeperResponse::Piece(page) = response { Ok(page) } else { Err(mismatch(response)) }
    }

    /// Writes to the standard input of a child on pipes, once per key. Long input is split into several requests, each
    /// with its own key.
    fn write_once(&mut self, key: u64, bytes: &[u8], close_after: bool) -> Result<(), KeeperError> {
        let pieces: Vec<&[u8]> =
            if bytes.is_empty() { vec![bytes] } else { bytes.chunks(MAX_INPUT_BYTES).collect() };
        let last = pieces.len() - 1;
        for (number, piece) in pieces.into_iter().enumerate() {
            // Keys are positions or sequence numbers, so their highest bits are free for the number of later pieces.
            // The last piece has the key itself, which therefore stands for the whole input.
            let key = key ^ (((last - number) as u64) << 48);
            let eof = close_after && number == last;
            self.command(KeeperRequest::Write { key, bytes: piece.to_vec(), eof })?;
        }
        Ok(())
    }

    /// Which of these keys of [`Self::write_once`] were accepted. Only for keepers since protocol 2.
    fn find_written(&mut self, keys: &[u64]) -> Result<Vec<u64>, KeeperError> {
        let request = KeeperRequest::FindWritten { keys: keys.to_vec() };
        let response = self.exchange(request, RESPONSE_TIMEOUT_MS)?;
        if let KeeperResponse::Written { keys } = response { Ok(keys) } else { Err(mismatch(response)) }
    }

    /// Sends a signal to the child's process group.
    fn signal_group(&mut self, number: i32) -> Result<(), KeeperError> {
        self.command(KeeperRequest::Signal(number))
    }

    /// Changes the size of the terminal.
    fn resize(&mut self, rows: u16, cols: u16) -> Result<(), KeeperError> {
        self.command(KeeperRequest::Resize { rows, cols })
    }

    /// Sends a request that the keeper only confirms.
    fn command(&mut self, request: KeeperRequest) -> Result<(), KeeperError> {
        let response = self.exchange(request, RESPONSE_TIMEOUT_MS)?;
        if let KeeperResponse::Done = response { Ok(()) } else { Err(mismatch(response)) }
    }
}

fn status_of(response: KeeperResponse) -> Result<KeeperStatus, KeeperError> {
    if let KeeperResponse::Status(status) = response { Ok(*status) } else { Err(mismatch(response)) }
}

/// The error of a response that is no result of its request: a refusal, or a violation of the protocol.
fn mismatch(response: KeeperResponse) -> KeeperError {
    match response {
        KeeperResponse::Refused(refusal) => KeeperError::Refused(refusal),
        KeeperResponse::Done
        | KeeperResponse::Status(_)
        | KeeperResponse::Started(_)
        | KeeperResponse::Ran(_)
        | KeeperResponse::Output(_)
        | KeeperResponse::Ended(_)
        | KeeperResponse::Piece(_)
        | KeeperResponse::Exited(_)
        | KeeperResponse::Settled(_)
        | KeeperResponse::Written { .. }
        | KeeperResponse::ShellRestarted(_)
        | KeeperResponse::ChildResumed(_) => {
            KeeperError::Protocol("the keeper sent a response of another kind")
        }
    }
}
