"""Our own runtime, asked by a Python client like the peers: what the client's language costs."""

import json
import subprocess
import sys

from serve import serve

abide = subprocess.Popen([sys.argv[1], "rpc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def call(method, params):
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    abide.stdin.write(request.encode() + b"\n")
    abide.stdin.flush()
    return json.loads(abide.stdout.readline())["result"]


session = call("session.create", {"shell": "bash"})["session_id"]


def once():
    done = call("exec.run", {"session_id": session, "command": "true"})
    if done["exit_code"] != 0:
        raise RuntimeError(done)


try:
    serve("abide", once)
finally:
    abide.stdin.close()
    abide.wait()
