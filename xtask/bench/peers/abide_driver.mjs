// Our own runtime, asked by a Node client like the peers: what the client's language costs.

import { LineClient, serve } from "./serve.mjs";

const abide = new LineClient(process.argv[2], ["rpc"]);
const { session_id } = await abide.call("session.create", { shell: "bash" });

try {
  await serve("abide", async () => {
    const done = await abide.call("exec.run", { session_id, command: "true" });
    if (done.exit_code !== 0) {
      throw new Error(JSON.stringify(done));
    }
  });
} finally {
  await abide.end();
}
