"""The loggers of the compiler, and ``ARRAYFN_LOG``, which shows their records.

``ARRAYFN_LOG=compile,retrace,cache`` prints records to standard error. ``compile``
prints each compilation with its time. ``retrace`` prints each call that compiles a
function again, with the argument that caused it. ``cache`` prints each lookup in the
disk cache. ``ARRAYFN_LOG=all`` prints all three. A program can use the loggers like any
others, for example ``logging.getLogger("arrayfn.retrace").setLevel("INFO")``.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Final

VARIABLE: Final = "ARRAYFN_LOG"
COMPILE: Final = logging.getLogger("arrayfn.compile")
RETRACE: Final = logging.getLogger("arrayfn.retrace")
CACHE: Final = logging.getLogger("arrayfn.cache")
_NAMES: Final = ("compile", "retrace", "cache")


def configure(wanted: str) -> None:
    """Print the records of the loggers named in ``wanted``, separated by commas.

    ``"all"`` stands for all loggers. Unknown names give a RuntimeWarning.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if names == ["all"]:
        names = list(_NAMES)
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        warnings.warn(
            f"{VARIABLE} names {', '.join(unknown)}; it takes {', '.join(_NAMES)}, "
            "or all",
            RuntimeWarning,
            stacklevel=2,
        )
    if not names:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    for name in names:
        if name in _NAMES:
            logger = logging.getLogger(f"arrayfn.{name}")
            logger.setLevel(logging.INFO)
            logger.addHandler(handler)
            logger.propagate = False


def configure_from_environment() -> None:
    """Configure the loggers by ``ARRAYFN_LOG``, if it is set."""
    wanted = os.environ.get(VARIABLE)
    if wanted:
        configure(wanted)
