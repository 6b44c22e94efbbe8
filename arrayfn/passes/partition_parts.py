"""Sums in a fixed number of parts, added by one binary tree on any number of devices.

An axis that a mesh axis cuts is divided into ``parts`` blocks, a power of two. A device
computes each of its blocks by an equation of its own, so shapes, and with them kernels,
do not depend on the number of devices. It adds its blocks pairwise, and the devices'
sums are gathered and added pairwise: together the same tree of ``parts`` leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrayfn.ir import Atom
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.collectives import all_gather
from arrayfn.primitives.slicing import concatenate, slice_


def reason_against(parts: int, devices: int, extents: Sequence[int]) -> str:
    """Why an axis has no tree of ``parts`` leaves over ``devices``; "" if it has.

    ``extents`` are those of the axis in the operands.

    >>> reason_against(8, 2, [32]), reason_against(8, 3, [24])
    ('', '3 devices are no power of two of at most 8')
    """
    if parts % devices or devices & (devices - 1):
        return f"{devices} devices are no power of two of at most {parts}"
    bad = [n for n in extents if n % parts]
    return f"an axis of {bad[0]} is no multiple of {parts} parts" if bad else ""


def blocks_of(x: Atom, dim: int | None, count: int) -> list[Atom]:
    """``count`` blocks of ``x`` along ``dim``; ``x`` itself for each if it has none."""
    if dim is None or count == 1:
        return [x] * count
    shape = x.type.shape
    extent = shape[dim] // count

    def block(k: int) -> Atom:
        """Part k of ``x`` along ``dim``."""
        start = tuple(k * extent if d == dim else 0 for d in range(len(shape)))
        limit = tuple((k + 1) * extent if d == dim else n for d, n in enumerate(shape))
        return slice_(x, start=start, limit=limit, strides=(1,) * len(shape))

    return [block(k) for k in range(count)]


def pairwise(values: Sequence[Atom]) -> Atom:
    """The sum of a power of two of values, by a binary tree."""
    level = list(values)
    while len(level) > 1:
        level = [e.add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def summed_over_devices(x: Atom, axis: str, devices: int) -> Atom:
    """The sum of all members' ``x`` over a mesh axis, by a binary tree, on each member.

    The axis ``axis`` has ``devices`` members.
    """
    if devices == 1:
        return x
    every = all_gather(x, axis_name=axis, members=devices)
    parts = blocks_of(every, 0, devices)
    return pairwise([views.reshape(part, shape=x.type.shape) for part in parts])


def in_blocks(
    operands: Sequence[Atom],
    dims: Sequence[int | None],
    count: int,
    emit: Callable[[Sequence[Atom]], Sequence[Atom]],
) -> list[Sequence[Atom]]:
    """What ``emit`` gives for each of ``count`` blocks of the operands.

    An operand is cut along its entry of ``dims``; with None each block has all of it.
    """
    pairs = zip(operands, dims, strict=True)
    blocks = [blocks_of(x, dim, count) for x, dim in pairs]
    return [emit(block) for block in zip(*blocks, strict=True)]


def joined(results: Sequence[Sequence[Atom]], dims: Sequence[int]) -> list[Atom]:
    """The results of all blocks, put together along ``dims``."""
    if len(results) == 1:
        return list(results[0])
    columns = zip(*results, strict=True)
    return [concatenate(*c, axis=dim) for c, dim in zip(columns, dims, strict=True)]
