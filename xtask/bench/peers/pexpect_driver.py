"""pexpect: a bash on a pseudo-terminal, driven through the package's own `replwrap`.

`run_command` types a line and waits for the prompt. It knows no exit code; asking for one would be a second command,
so it is left out in the peer's favour. By default the package sleeps 50 ms before it types; `no-delay` switches that
off, as its documentation explains.
"""

import sys

import pexpect
from pexpect import replwrap

from serve import serve

shell = replwrap.bash()
if sys.argv[1] == "no-delay":
    shell.child.delaybeforesend = None


def once():
    shell.run_command("true")


try:
    serve(f"pexpect {pexpect.__version__}", once)
finally:
    shell.child.close(force=True)
