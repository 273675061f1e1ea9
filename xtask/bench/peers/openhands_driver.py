"""OpenHands: the executor behind its terminal tool, with the kind of terminal that is asked for.

It picks a tmux pane by itself when tmux is there, and a pseudo-terminal of its own otherwise. The agent, the model
and the conversation around the tool are left out.
"""

import os
import sys
from importlib.metadata import version

from openhands.tools.terminal import TerminalAction
from openhands.tools.terminal.impl import TerminalExecutor

from serve import serve

executor = TerminalExecutor(working_dir=os.getcwd(), terminal_type=sys.argv[1])


def once():
    seen = executor(TerminalAction(command="true"))
    if seen.exit_code != 0:
        raise RuntimeError(f"exit code {seen.exit_code}")


try:
    serve(f"openhands-tools {version('openhands-tools')}", once)
finally:
    executor.close()
