"""Defines ``Call``: a library call, prepared by a provider when a plan is loaded."""

from __future__ import annotations

from collections.abc import Callable

from arrayfn.records import frozen


@frozen
class Call:
    """A prepared library call, which ``enqueue(stream, *addresses)`` enqueues.

    The addresses are those of the arrays whose parameter names are in ``arrays``.
    ``capturable`` says whether a stream capture can include the call. Collectives
    (``is_collective``) run one after the other, in the order of the plan, which all
    members share; they run concurrently with steps that do not access their arrays.
    """

    enqueue: Callable[..., None]
    arrays: tuple[str, ...]
    capturable: bool = True
    is_collective: bool = False
