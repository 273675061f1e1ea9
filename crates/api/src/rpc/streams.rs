//! Chunks of streamed commands: numbered, and split only between characters.

use abide_terminal::{CallId, ExecChunk, OutputChunk, OutputStream, Utf8Pieces};
use abide_wire::terminal as wire;
use serde::Serialize;

use super::RpcConnection;
use crate::escape::escape;
use crate::translate::to_wire;

pub(super) struct ExecStreamState {
    pub(super) id: String,
    pub(super) seq: u64,
    pub(super) encoding: wire::OutputEncoding,
    pub(super) text: [Utf8Pieces; 2],
    pub(super) ends: [u64; 2],
}
impl RpcConnection {
    pub(super) fn on_chunk(&mut self, call_id: CallId, chunk: ExecChunk) {
        let Some(mut state) = self.streams.remove(&call_id) else { return };
        match chunk {
            ExecChunk::Output(OutputChunk { stream, offset, bytes, .. }) => {
                let index = stream.index();
                state.ends[index] = offset + bytes.len() as u64;
                let (data, early) = match state.encoding {
                    wire::OutputEncoding::Utf8 => state.text[index].push(bytes),
                    wire::OutputEncoding::Base64 => {
                        (to_wire::encode(&bytes, wire::OutputEncoding::Base64), 0)
                    }
                };
                if !data.is_empty() {
                    self.send_chunk(&mut state, stream.name(), offset - early as u64, data, (None, None));
                }
                self.streams.insert(call_id, state);
            }
            ExecChunk::Exit(exit) => {
                for stream in OutputStream::ALL {
                    if let Some((data, length)) = state.text[stream.index()].finish() {
                        let offset = state.ends[stream.index()] - length as u64;
                        self.send_chunk(&mut state, stream.name(), offset, data, (None, None));
                    }
                }
                let offset = state.ends[0];
                self.send_chunk(&mut state, "exit", offset, String::new(), to_wire::exit_and_error(exit));
            }
        }
    }

    pub(super) fn send_chunk(
        &mut self,
        state: &mut ExecStreamState,
        kind: &str,
        offset: u64,
        data: String,
        (exit, error): (Option<wire::ExecExit>, Option<String>),
    ) {
        let chunk = wire::ExecChunkNotification {
            stream_id: state.id.clone(),
            seq: state.seq,
            kind: kind.to_owned(),
            offset,
            data: String::new(),
            encoding: state.encoding,
            exit,
            error,
        };
        state.seq += 1;
        let notification = RpcNotification { jsonrpc: "2.0", method: "exec.chunk", params: &chunk };
        let Ok(line) = serde_json::to_string(&notification) else { return };
        // The data is escaped directly into the output; an intermediate copy would cost as much as sending it.
        let (head, tail) =
            line.split_at(line.find(EMPTY_DATA).map_or(line.len(), |at| at + EMPTY_DATA.len() - 1));
        self.output.extend_from_slice(head.as_bytes());
        escape(&data, &mut self.output);
        self.output.extend_from_slice(tail.as_bytes());
        self.output.push(b'\n');
    }
}

const EMPTY_DATA: &str = "\"data\":\"\"";

#[derive(Serialize)]
struct RpcNotification<'a> {
    jsonrpc: &'static str,
    method: &'static str,
    params: &'a wire::ExecChunkNotification,
}
