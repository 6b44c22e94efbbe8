"""Numbers as people read them: bytes, seconds and rates."""

from __future__ import annotations


def in_bytes(count: float) -> str:
    """Format a number of bytes, in units of 1024.

    >>> in_bytes(12), in_bytes(16384), in_bytes(5 << 29)
    ('12 B', '16 KiB', '2.5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def in_si(count: float) -> str:
    """Format a number with an SI prefix, and a space before it.

    >>> in_si(950), in_si(2.5e9)
    ('950 ', '2.5 G')
    """
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g} {prefix}"
        count /= 1000
    return f"{count:.3g} P"


def in_seconds(seconds: float) -> str:
    """Format a duration.

    >>> in_seconds(3.2e-6), in_seconds(0.0125), in_seconds(7.5)
    ('3.2 us', '12.5 ms', '7.5 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.3g} s"
