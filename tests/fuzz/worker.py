"""A process that runs programs, and says before each which one it is.

Lines of JSON go to the standard output: ``{"begin": index}``, then what came of it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from tests.fuzz.devices import install
from tests.fuzz.drawing import draw
from tests.fuzz.run import RAW, run_case

MOST_MEMORY = 2 << 30
COMPILED_EVERY = 10
"""One program in so many is compiled to PTX on the emulator."""

__all__ = ["main"]


def limit_of(device: str) -> int:
    """How many elements the arrays of a program have at most."""
    return 20_000 if device in ("cpu", "cuda") else 120


def compiles(device: str, index: int) -> bool:
    """Whether the kernels of a program are compiled besides being emulated."""
    return device == "emulator" and index % COMPILED_EVERY == 0


def main() -> None:
    """Run the programs first, first + step, ... that the arguments ask for."""
    given = json.loads(sys.argv[1])
    install()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program prints is no line of ours

    def say(**what: Any) -> None:
        output.write(json.dumps(what) + "\n")
        output.flush()

    device, seed = given["device"], given["seed"]
    for index in range(given["first"], given["end"], given["step"]):
        say(begin=index)
        case = draw(seed, index, limit_of(device), given["only"])
        outcome = run_case(case, device, compiles(device, index))
        say(
            done=index,
            status=outcome.status,
            message=outcome.message,
            signature=outcome.signature,
        )
        if device == "cuda" and outcome.status == RAW:
            say(leave=True)  # a card that has faulted fails whatever comes next
            return
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_MEMORY:
            say(leave=True)
            return
    say(end=True)


if __name__ == "__main__":
    main()
