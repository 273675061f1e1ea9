//! The terminal as MCP tools, with the official SDK. The runtime has its own thread; tools wait for its replies.

use abide_terminal::{RuntimeHandle, SessionId, TerminalCall, TerminalError, TerminalReply};
use abide_wire::{strict::StrictJson, terminal as wire};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolResult;
use rmcp::{ServiceExt, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::translate;

/// Serves MCP on standard input and output until the client closes them.
pub async fn serve(runtime: RuntimeHandle) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let service = TerminalTools { runtime }.serve(rmcp::transport::stdio()).await?;
    service.waiting().await?;
    Ok(())
}

struct TerminalTools {
    runtime: RuntimeHandle,
}

/// The parameters of `terminal_run`: the part of `exec.run` that a model needs.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RunParams")]
struct TerminalRunParams {
    /// The session, as `terminal_create` named it.
    session_id: String,
    /// The command, as one would type it. The shell remembers directory, variables and functions.
    command: String,
    /// After how many milliseconds the command is stopped; the session stays usable.
    timeout_ms: Option<u64>,
    /// The standard input of the command; empty unless given.
    stdin: Option<String>,
    /// How many bytes of each stream are returned (1 MiB).
    max_output_bytes: Option<u64>,
}

#[tool_router]
impl TerminalTools {
    #[tool(description = "Start a persistent shell session. Returns its session_id.")]
    async fn terminal_create(
        &self,
        Parameters(StrictJson(params)): Parameters<StrictJson<wire::CreateSessionParams>>,
    ) -> CallToolResult {
        self.call(translate::create(params)).await
    }

    #[tool(
        description = "Run a command in a session and wait for it. Returns stdout, stderr and exit_code apart; cd, export \
                       and functions persist for the next command."
    )]
    async fn terminal_run(
        &self,
        Parameters(StrictJson(params)): Parameters<StrictJson<TerminalRunParams>>,
    ) -> CallToolResult {
        let execute = translate::execute(wire::ExecParams {
            session_id: params.session_id,
            command: params.command,
            timeout_ms: params.timeout_ms,
            stdin: params.stdin,
            env: None,
            max_output_bytes: params.max_output_bytes,
            encoding: wire::OutputEncoding::Utf8,
        });
        self.call(TerminalCall::Run(execute)).await
    }

    #[tool(description = "Stop the command that runs in a session. The session stays usable.")]
    async fn terminal_cancel(
        &self,
        Parameters(StrictJson(params)): Parameters<StrictJson<wire::SessionParams>>,
    ) -> CallToolResult {
        self.call(TerminalCall::Cancel(SessionId::from_text(&params.session_id))).await
    }

    #[tool(description = "End a session and everything that it started.")]
    async fn terminal_destroy(
        &self,
        Parameters(StrictJson(params)): Parameters<StrictJson<wire::DestroySessionParams>>,
    ) -> CallToolResult {
        let session = SessionId::from_text(&params.session_id);
        self.call(TerminalCall::Destroy { session, force: params.force }).await
    }

    #[tool(description = "List the sessions and their states.")]
    async fn terminal_list(&self) -> CallToolResult {
        self.call(TerminalCall::List).await
    }

    async fn call(&self, call: TerminalCall) -> CallToolResult {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.runtime.call(call, move |answer| {
            // The client may have given up waiting.
            sender.send(answer).ok();
        });
        match receiver.await {
            Ok(answer) => tool_result(answer),
            Err(_) => CallToolResult::structured_error(
                json!({ "code": "INTERNAL", "message": "the runtime has ended" }),
            ),
        }
    }
}

#[tool_handler(
    name = "abide",
    instructions = "Persistent terminal sessions: create one, then run commands in it."
)]
impl rmcp::ServerHandler for TerminalTools {}

fn tool_result(answer: Result<TerminalReply, TerminalError>) -> CallToolResult {
    match answer.map(reply_value) {
        Ok(value) => CallToolResult::structured(value),
        Err(error) => {
            CallToolResult::structured_error(json!({ "code": error.code.as_str(), "message": error.message }))
        }
    }
}

fn reply_value(reply: TerminalReply) -> Value {
    let value = match reply {
        TerminalReply::Session(info) => serde_json::to_value(translate::session(info)),
        TerminalReply::Sessions(all) => {
            let sessions = all.into_iter().map(translate::session).collect();
            serde_json::to_value(wire::SessionListResult { sessions })
        }
        TerminalReply::CommandFinished(run) => {
            serde_json::to_value(translate::run_result(run, wire::OutputEncoding::Utf8))
        }
        TerminalReply::Destroyed(session) => {
            Ok(json!({ "session_id": session.as_str(), "state": "TERMINATED" }))
        }
        TerminalReply::Cancelled => Ok(json!({ "cancelled": true })),
        TerminalReply::Screen(screen) => serde_json::to_value(translate::screen(&screen)),
        TerminalReply::StreamStarted(..)
        | TerminalReply::Done
        | TerminalReply::Output(_)
        | TerminalReply::Stats(_) => Ok(json!({})),
    };
    value.unwrap_or_default()
}
