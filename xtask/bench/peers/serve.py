"""The half of the conversation that every Python driver shares.

A driver first says that it is ready, then takes a number on each line and answers with the times of so many
commands, in microseconds. It ends when its input does. What a peer is and how it is asked lies in the drivers.
"""

import json
import os
import sys
import time

# The peers print what they like; only this file may write where samples are expected.
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def serve(version, once):
    """Answers until the input ends. `once` runs one command and raises unless it succeeded."""
    _say({"ready": version})
    for line in sys.stdin:
        _say({"micros": [_timed(once) for _ in range(int(line))]})


async def serve_async(version, once):
    """The same for a peer whose calls are awaited. Reading a line blocks, but nothing else is going on then."""
    _say({"ready": version})
    for line in sys.stdin:
        micros = []
        for _ in range(int(line)):
            start = time.perf_counter_ns()
            await once()
            micros.append((time.perf_counter_ns() - start) / 1000)
        _say({"micros": micros})


def _timed(once):
    start = time.perf_counter_ns()
    once()
    return (time.perf_counter_ns() - start) / 1000


def _say(value):
    _answers.write(json.dumps(value) + "\n")
