//! The terminal as MCP tools, with the official SDK. The runtime has its own thread; tools wait for its replies.

mod params;

use abide_terminal::{CallTicket, RuntimeHandle, SessionId, TerminalCall, TerminalCallResult, TerminalError};
use abide_wire::terminal as wire;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolResult;
use rmcp::{ServiceExt, tool, tool_handler, tool_router};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::translate::{from_wire, to_wire};
use params::ToolParams;

/// Serves MCP on standard input and output until the client closes them.
pub async fn serve(runtime: RuntimeHandle) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let service = TerminalTools { runtime }.serve(rmcp::transport::stdio()).await?;
    service.waiting().await?;
    Ok(())
}

struct TerminalTools {
    runtime: RuntimeHandle,
}

/// Parameters of `terminal_run`: the part of `exec.run` that a model needs.
#[derive(Debug, Deserialize, ToSchema)]
struct TerminalRunParams {
    /// The id that `terminal_create` returned.
    session_id: String,
    /// The command, as typed in a shell. Directory, variables and functions persist for later commands.
    command: String,
    /// The command is stopped after this time in milliseconds. The session stays usable.
    timeout_ms: Option<u64>,
    /// Standard input; without it, the command reads end-of-file.
    stdin: Option<String>,
    /// Maximum number of bytes returned for each stream; default 1 MiB.
    max_output_bytes: Option<u64>,
}

#[tool_router]
impl TerminalTools {
    #[tool(description = "Start a persistent shell session. Returns its session_id.")]
    async fn terminal_create(
        &self,
        Parameters(ToolParams(params)): Parameters<ToolParams<wire::CreateSessionParams>>,
    ) -> CallToolResult {
        let create = from_wire::create(params);
        self.call(|ticket| TerminalCall::Create(create, ticket), to_wire::session).await
    }

    #[tool(
        description = "Run a command in a session and wait for it. Returns stdout, stderr and exit_code apart; cd, export \
                       and functions persist for the next command."
    )]
    async fn terminal_run(
        &self,
        Parameters(ToolParams(params)): Parameters<ToolParams<TerminalRunParams>>,
    ) -> CallToolResult {
        let execute = from_wire::execute(wire::ExecParams {
            session_id: params.session_id,
            command: params.command,
            timeout_ms: params.timeout_ms,
            stdin: params.stdin,
            env: None,
            max_output_bytes: params.max_output_bytes,
            encoding: wire::OutputEncoding::Utf8,
        });
        let to_result = |run| to_wire::run_result(&run, wire::OutputEncoding::Utf8);
        self.call(|ticket| TerminalCall::Run(execute, ticket), to_result).await
    }

    #[tool(description = "Stop the command that runs in a session. The session stays usable.")]
    async fn terminal_cancel(
        &self,
        Parameters(ToolParams(params)): Parameters<ToolParams<wire::SessionParams>>,
    ) -> CallToolResult {
        let session = from_wire::session_id(&params);
        let to_result = |_| wire::ExecCancelResult { cancelled: true };
        self.call(|ticket| TerminalCall::Cancel(session, ticket), to_result).await
    }

    #[tool(description = "End a session and everything that it started.")]
    async fn terminal_destroy(
        &self,
        Parameters(ToolParams(params)): Parameters<ToolParams<wire::DestroySessionParams>>,
    ) -> CallToolResult {
        let session = SessionId::from_text(&params.session_id);
        let call = |ticket| TerminalCall::Destroy { session, force: params.force, ticket };
        self.call(call, to_wire::destroyed).await
    }

    #[tool(description = "List the sessions and their states.")]
    async fn terminal_list(&self) -> CallToolResult {
        self.call(TerminalCall::List, to_wire::sessions).await
    }

    async fn call<R: TerminalCallResult + Send, W: Serialize>(
        &self,
        call: impl FnOnce(CallTicket<R>) -> TerminalCall,
        to_wire: impl FnOnce(R) -> W,
    ) -> CallToolResult {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.runtime.call(call, move |result| {
            // The client may have given up waiting.
            sender.send(result).ok();
        });
        match receiver.await {
            Ok(Ok(result)) => {
                CallToolResult::structured(serde_json::to_value(to_wire(result)).unwrap_or_default())
            }
            Ok(Err(error)) => tool_error(&error),
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

fn tool_error(error: &TerminalError) -> CallToolResult {
    CallToolResult::structured_error(json!({ "code": error.code.as_str(), "message": error.message }))
}
