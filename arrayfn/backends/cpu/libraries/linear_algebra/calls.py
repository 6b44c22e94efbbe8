"""Calls of LAPACK by tables, which name the source of each argument.

A provider says in text what it calls, as ``"?syevd V U &n $0 &n $1 work &words info"``:

* ``?syevd``: the function; ``?`` is the dtype's letter, ``%`` that of its real numbers;
* a capital letter: an option;
* ``&n``: the address of the kernel's integer parameter ``n``;
* ``work``: the kernel's pointer parameter ``work``;
* ``$0``: a pointer that the routine computes for each matrix;
* ``info``: the result, 0 if all went well; ``null``: a null pointer.

Fortran takes all arguments by reference. Words of 64 bits serve libraries with integers
of 32 and of 64 bits, on processors that store the low half first.

The text becomes words before the kernel's own arguments. ``lapack`` reads them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, Blas, blas
from arrayfn.backends.native import call, load, native, stack, store
from arrayfn.dtypes import BY_SHORT_NAME, real_of, short_name

# Byte offsets of the words before the arguments; tables of calls follow from CALLS on.
ITEM_BYTES: Final = 0
REAL_BYTES: Final = 8
NAN: Final = 16  # the bits of NaN in two 32-bit halves, as reals repeat them
INTEGER_BYTES: Final = 24
OPTIONS: Final = 32
CALLS: Final = 48

MOST: Final = 20  # arguments of a function
# Byte offsets into a table: the function's address, then a word for each argument.
ARGUMENTS: Final = 8
CALL_BYTES: Final = ARGUMENTS + 8 * MOST

_OPTIONS: Final = "ACEGILNRSTUV"
# Kinds of arguments: the low bits of a word, whose other bits are a byte offset.
KIND_BITS: Final = 3
VALUE: Final = 0  # a word of the kernel's arguments
ADDRESS: Final = 1  # the address of one
OWN: Final = 2  # a word of the routine's own
INFO: Final = 3
NULL: Final = 4


@native
def lapack(arguments: int, table: int, own: int) -> int:
    """Call the function of the ``table`` at a byte offset; return its ``info``.

    At ``own`` are the pointers ``$0``, ``$1`` and so on.
    """
    given = stack(MOST)
    info = stack(1)
    store(info, 0)
    place = arguments + table + ARGUMENTS
    for k in range(MOST):
        kind = load(place + 8 * k)
        offset = kind >> KIND_BITS
        kind &= (1 << KIND_BITS) - 1
        value = 0
        if kind == VALUE:
            value = load(arguments + offset)
        elif kind == ADDRESS:
            value = arguments + offset
        elif kind == OWN:
            value = load(own + offset)
        elif kind == INFO:
            value = info
        store(given + 8 * k, value)
    # A C function ignores what it is given beyond its own arguments.
    call(
        load(arguments + table),
        load(given),
        load(given + 8),
        load(given + 16),
        load(given + 24),
        load(given + 32),
        load(given + 40),
        load(given + 48),
        load(given + 56),
        load(given + 64),
        load(given + 72),
        load(given + 80),
        load(given + 88),
        load(given + 96),
        load(given + 104),
        load(given + 112),
        load(given + 120),
        load(given + 128),
        load(given + 136),
        load(given + 144),
        load(given + 152),
    )
    return load(info)


def fields(calls: int, *names: str, more: int = 0) -> dict[str, int]:
    """The byte offsets of a kernel's parameters.

    They follow the tables of ``calls``, and ``more`` words.
    """
    first = CALLS + CALL_BYTES * calls + 8 * more
    return {name: first + 8 * k for k, name in enumerate(names)}


def lapack_words(
    dtype: str,
    places: dict[str, int],
    *calls: str | tuple[str, str],
    library: Blas | None = None,
) -> tuple[int, ...]:
    """The words before a kernel's arguments.

    ``places`` are its ``fields``. Of a pair of calls the second is that of complex
    numbers. The functions are those of ``library``, or else of ``blas()``.
    """
    kind = BY_SHORT_NAME[dtype]
    real = real_of(kind)
    library = library or blas()
    nan = int(np.full(8 // real.itemsize, np.nan, real).view(np.int64)[0])
    options = np.frombuffer(_OPTIONS.encode().ljust(CALLS - OPTIONS), np.int64)
    words = [kind.itemsize, real.itemsize, nan, library.integer_bytes]
    words += [int(word) for word in options]
    for text in calls:
        chosen = text if isinstance(text, str) else text[kind.kind == "c"]
        function, *arguments = chosen.split()
        name = function.replace("?", LETTERS[dtype])
        name = name.replace("%", LETTERS[short_name(real)])
        table = [_argument(argument, places) for argument in arguments]
        words.append(library.address(name))
        words += table + [NULL] * (MOST - len(table))
    return tuple(words)


def _argument(text: str, places: dict[str, int]) -> int:
    """The word of one argument."""
    if text == "info":
        return INFO
    if text == "null":
        return NULL
    if text in _OPTIONS:
        return (OPTIONS + _OPTIONS.index(text)) << KIND_BITS | ADDRESS
    if text.startswith("$"):
        return 8 * int(text[1:]) << KIND_BITS | OWN
    if text.startswith("&"):
        return places[text[1:]] << KIND_BITS | ADDRESS
    return places[text] << KIND_BITS | VALUE
