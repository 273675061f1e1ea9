// Codex: the app-server's `command/exec`, without a thread, a model or a sandbox.
//
// It is asked in two ways. `fresh` is how it is meant: each request starts a process and is answered with its exit
// code. `held` is the nearest thing to a session: one bash is started, lines are written to it with
// `command/exec/write`, and a marker that this client makes up is waited for in its output.

import { mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

import { LineClient, serve } from "./serve.mjs";

const [home, way] = process.argv.slice(2);
const require = createRequire(join(home, "package.json"));
const { version } = require("@openai/codex/package.json");

const settings = join(process.env.HOME, ".codex");
mkdirSync(settings, { recursive: true });
writeFileSync(join(settings, "config.toml"), "check_for_update_on_startup = false\n[analytics]\nenabled = false\n");

const codex = new LineClient(process.execPath, [require.resolve("@openai/codex/bin/codex.js"), "app-server"]);
await codex.call("initialize", {
  clientInfo: { name: "bench", title: "Bench", version: "0.0.1" },
  capabilities: { experimentalApi: true },
});
codex.notify("initialized");
const sandboxPolicy = { type: "dangerFullAccess" };

async function fresh() {
  const done = await codex.call("command/exec", { command: ["true"], sandboxPolicy });
  if (done.exitCode !== 0) {
    throw new Error(JSON.stringify(done));
  }
}

function held() {
  const processId = "shell";
  const line = Buffer.from("true; echo MARK $?\n").toString("base64");
  let seen = "";
  let marked = () => {};
  codex.onNotice = ({ method, params }) => {
    if (method === "command/exec/outputDelta") {
      seen += Buffer.from(params.deltaBase64, "base64").toString();
      if (seen.includes("MARK 0\n")) {
        seen = "";
        marked();
      }
    }
  };
  // Its answer comes when the shell ends, which is when the server does.
  codex
    .call("command/exec", {
      command: ["bash"],
      processId,
      streamStdin: true,
      streamStdoutStderr: true,
      disableTimeout: true,
      disableOutputCap: true,
      sandboxPolicy,
    })
    .catch(() => {});
  return async () => {
    const mark = new Promise((yes) => (marked = yes));
    await Promise.all([codex.call("command/exec/write", { processId, deltaBase64: line }), mark]);
  };
}

try {
  await serve(`codex ${version}`, way === "held" ? held() : fresh);
} finally {
  await codex.end();
}
