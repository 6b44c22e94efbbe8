"""The command: ``python -m tests.fuzz --device cpu --seconds 60 --seed 1``."""

from __future__ import annotations

import argparse
import os
import sys

import arrayfn as af
from tests.fuzz.campaign import STEP, Campaign, Failure, described, different
from tests.fuzz.devices import DEVICES, install
from tests.fuzz.drawing import draw
from tests.fuzz.shrink import in_a_fork
from tests.fuzz.steps import FAMILIES
from tests.fuzz.worker import compiles, limit_of


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--seconds", type=float, help="stop after so many")
    parser.add_argument("--count", type=int, help="stop after so many programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", metavar="SEED:INDEX", help="run and shrink one")
    parser.add_argument("--only", action="append", default=[], choices=list(FAMILIES))
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--show", action="store_true", help="print it, do not run it")
    return parser.parse_args()


def replay(given: argparse.Namespace) -> int:
    """Run one program again, and shrink it if it fails."""
    seed, index = map(int, given.replay.split(":"))
    case = draw(seed, index, limit_of(given.device), given.only)
    print(case.source(given.device))
    if given.show:
        return 0
    install()
    outcome = in_a_fork(case, given.device, compiles(given.device, index))
    print(f"# {outcome.status}: {outcome.message}")
    if not outcome.failed:
        return 0
    if not given.no_shrink:
        failure = Failure(index, outcome)
        print(described(given.device, seed, failure, given.only))
    return 1


def main() -> int:
    """Run the programs asked for; 1 if any failed."""
    given = arguments()
    if given.device == "cuda" and af.backend_info("cuda").missing:
        print(f"there is no GPU: {af.backend_info('cuda').missing}", file=sys.stderr)
        return 2
    if given.replay:
        return replay(given)
    seconds = given.seconds or (1e9 if given.count else 60.0)
    campaign = Campaign(
        given.device,
        given.seed,
        count=given.count or STEP,
        seconds=seconds,
        jobs=given.jobs,
        only=given.only,
        tell=lambda line: print(line, flush=True),
    )
    report = campaign.run()
    if report.failures and not given.no_shrink:
        print(f"\n{len(report.failures)} failures; the first of each kind, shrunk:\n")

        def small(failure: Failure) -> str:
            return described(given.device, given.seed, failure, given.only)

        for failure in different(report.failures):
            print(small(failure), flush=True)
    print(report.summary())
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
