// MCP servers that run commands: one stdio server, asked with `tools/call` by a client of forty lines.
//
// A client library would add its own time to the peer's; this one only writes a line and reads one.

import { mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

import { LineClient, serve } from "./serve.mjs";

const [home, server, way] = process.argv.slice(2);
const require = createRequire(join(home, "package.json"));

/** Each server: its package, its program, and how one command is run and known to have succeeded. */
const SERVERS = {
  commands: {
    name: "mcp-server-commands",
    program: "mcp-server-commands/build/index.js",
    fresh: (mcp) => async () => {
      expect(await mcp.call("tools/call", { name: "run_command", arguments: { command: "true" } }), () => true);
    },
  },
  desktop: {
    name: "@wonderwhy-er/desktop-commander",
    program: "@wonderwhy-er/desktop-commander/dist/index.js",
    prepare() {
      const folder = join(process.env.HOME, ".claude-server-commander");
      mkdirSync(folder, { recursive: true });
      writeFileSync(join(folder, "config.json"), JSON.stringify({ telemetryEnabled: false, defaultShell: "bash" }));
    },
    held: async (mcp) => {
      const params = { name: "start_process", arguments: { command: "bash -i", timeout_ms: 5000 } };
      const pid = Number(/PID (\d+)/.exec(text(await mcp.call("tools/call", params)))[1]);
      return async () => {
        const params = { name: "interact_with_process", arguments: { pid, input: "true", timeout_ms: 5000 } };
        expect(await mcp.call("tools/call", params), (said) => !/timeout/i.test(said));
      };
    },
  },
};

const { name, program, prepare = () => {}, ...ways } = SERVERS[server];
prepare();
const mcp = new LineClient(process.execPath, [join(home, "node_modules", program)]);
await mcp.call("initialize", {
  protocolVersion: "2025-06-18",
  capabilities: {},
  clientInfo: { name: "bench", version: "0.0.1" },
});
mcp.notify("notifications/initialized");

function text(result) {
  return result.content.map((part) => part.text ?? "").join("\n");
}

function expect(result, holds) {
  if (result.isError || !holds(text(result))) {
    throw new Error(JSON.stringify(result));
  }
}

try {
  await serve(`${name} ${require(join(home, "node_modules", name, "package.json")).version}`, await ways[way](mcp));
} finally {
  await mcp.end();
}
