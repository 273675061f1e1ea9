"""SWE-ReX: its local runtime and one bash session, in this very process.

The package is mostly used through its HTTP server. That is left out in the peer's favour, and so is nothing else:
a command is checked and wrapped, typed on a pseudo-terminal, and its exit code is asked for afterwards.
"""

import asyncio
from importlib.metadata import version

from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

from serve import serve_async


async def main():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())

    async def once():
        done = await runtime.run_in_session(BashAction(command="true"))
        if done.exit_code != 0:
            raise RuntimeError(f"exit code {done.exit_code}")

    try:
        await serve_async(f"swe-rex {version('swe-rex')}", once)
    finally:
        await runtime.close_session(CloseBashSessionRequest())
        await runtime.close()


asyncio.run(main())
