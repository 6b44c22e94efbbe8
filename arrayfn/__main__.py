"""``python -m arrayfn``: the command line."""

from __future__ import annotations

import sys

from arrayfn.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
