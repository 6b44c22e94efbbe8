"""Kernels that sort, argsort and merge rows, and select their first few elements.

They call NumPy's own sorts by address, which take an address and a count, and touch no
Python object. ``sorting`` has the providers.

Elements come as the integers that hold their bits (``Array[Bits]``). A float's *code*
is a signed integer of its size, and its *key* one of 64 bits. Both order as floats do,
with all NaNs last; keys of 0.0 and -0.0 are equal. ``sign`` is the top bit of an
unsigned integer, which is inverted to compare it as a signed one. ``magnitude`` is the
mask of all bits of a float but its sign, and ``infinity`` has the bits of infinity.
Each is 0 for other dtypes.
"""

from __future__ import annotations

from typing import Any, Final

from arrayfn.backends.cpu.libraries.foreign import (
    Array,
    Bits,
    Constant,
    c_function,
    i32,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import copy
from arrayfn.lowering.scalars import max_i64, min_i64

SHORT: Final = 256  # with fewer elements, a radix sort is slower
POSITION: Final = 0xFFFFFFFF  # the bits of a packed element that are its position
KEY: Final = ~POSITION  # the bits that are its key
LARGEST: Final = (1 << 63) - 1  # int64


def sort(
    function: int,
    short_function: int,
    size: Constant,
    x: Array[Bits],
    sorted: Array[Bits],
    n: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Copy chunks of the rows of ``x`` to ``sorted``, and sort each.

    A row of ``n`` elements has ``chunks`` chunks of ``chunk`` elements each. A work
    item is one chunk; items ``begin`` to ``end`` are computed. An element has ``size``
    integers (``Bits``): 2 for complex128, else 1. ``function`` is the address of
    NumPy's sort of the dtype, ``short_function`` that for chunks shorter than
    ``SHORT``.
    """
    for item in range(begin, end):
        # The chunk's first element in its row, its length, and its place in ``x``.
        first = item % chunks * chunk
        count = min_i64(n - first, chunk)
        offset = (item // chunks * n + first) * size
        if count > 0:
            copy(sorted + offset, x + offset, count * size)
            used = short_function if count < SHORT else function
            # The last argument, an array, is for dtypes with fields: a null pointer.
            c_function(used, sorted + offset, count, 0)


def sort_codes(
    function: int,
    short_function: int,
    magnitude: Constant,
    infinity: Constant,
    nan: Constant,
    flip: Constant,
    x: Array[Bits],
    sorted: Array[Bits],
    n: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Sort chunks of rows of floats by integer codes that order as the floats do.

    If a row has one chunk, ``sorted`` gets floats, else the codes, which ``merge``
    takes. ``magnitude``, ``infinity`` and ``nan`` are bit patterns of the dtype. Codes
    are stored with the bits of ``flip`` inverted. The other parameters are those of
    ``sort``.
    """
    for item in range(begin, end):
        first = item % chunks * chunk
        count = min_i64(n - first, chunk)
        offset = item // chunks * n + first
        if count > 0:
            target = sorted + offset
            for k in range(count):
                bits = int(x[offset + k])
                # A larger magnitude of a negative float is a smaller number.
                code = bits ^ magnitude if bits < 0 else bits
                code = nan if (bits & magnitude) > infinity else code  # any NaN
                target[k] = code ^ flip
            used = short_function if count < SHORT else function
            # The last argument, an array, is for dtypes with fields: a null pointer.
            c_function(used, target, count, 0)
            if chunks == 1:
                decode(target, count, magnitude, flip)


def decode(codes: Array[Any], count: int, magnitude: int, flip: int) -> None:
    """Replace ``count`` codes of ``sort_codes`` by the bits of floats, in place.

    All NaNs have one bit pattern. ``magnitude`` and ``flip`` are those of
    ``sort_codes``.
    """
    for k in range(count):
        code = int(codes[k]) ^ flip
        codes[k] = code ^ magnitude if code < 0 else code


def key_of(bits: int, sign: int, magnitude: int, infinity: int) -> int:
    """Return the key of an element with these ``bits``: an int64.

    Keys order as elements do: NaNs are last, 0.0 and -0.0 are equal. ``sign``,
    ``magnitude`` and ``infinity`` are bit patterns of the dtype, as the module says.
    """
    if magnitude == 0:  # an integer
        return bits ^ sign
    absolute = bits & magnitude
    if absolute > infinity:  # NaN
        return magnitude
    return absolute if bits == absolute else -absolute


def pack(
    x: Array[Any],
    packed: Array[int],
    count: int,
    first: int,
    sign: int,
    magnitude: int,
    infinity: int,
) -> None:
    """Write ``count`` words: an element's key in the high 32 bits, its position below.

    ``x`` are the bits of the elements, of up to 32 bits each, at positions from
    ``first`` on. ``sign``, ``magnitude`` and ``infinity`` are those of ``key_of``.
    """
    for k in range(count):
        key = key_of(int(x[k]), sign, magnitude, infinity)
        packed[k] = (key << 32) | (first + k)


def argsort_packed(
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    sorted: Array[int],
    n: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Argsort chunks of rows, by sorting 64-bit words of a key and a position.

    If a row has one chunk, ``sorted`` gets positions in the row, else the words, which
    ``merge`` takes. ``sort_function`` is the address of NumPy's sort of int64. The
    other parameters are those of ``sort`` and ``key_of``.
    """
    for item in range(begin, end):
        first = item % chunks * chunk
        count = min_i64(n - first, chunk)
        offset = item // chunks * n + first
        if count > 0:
            order = sorted + offset
            pack(x + offset, order, count, first, sign, magnitude, infinity)
            # The last argument is for dtypes that are not int64: a null pointer.
            c_function(sort_function, order, count, 0)
            if chunks == 1:
                for k in range(count):
                    order[k] = order[k] & POSITION


def argsort(
    argsort_function: int,
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    sorted: Array[int],
    keys: Array[int],
    n: int,
    begin: int,
    end: int,
) -> None:
    """Write to ``sorted`` the argsort of rows of ``n`` elements of 64 bits.

    ``keys`` is scratch for the keys of a row. ``argsort_function`` and
    ``sort_function`` are the addresses of NumPy's for int64. The argsort is not stable,
    so equal elements are put in order afterwards. ``sign``, ``magnitude`` and
    ``infinity`` are those of ``key_of``. Rows ``begin`` to ``end`` are computed.
    """
    for row in range(begin, end):
        order = sorted + row * n
        for k in range(n):
            order[k] = k
            keys[k] = key_of(int(x[row * n + k]), sign, magnitude, infinity)
        # The last argument is for dtypes that are not int64: a null pointer.
        c_function(argsort_function, keys, order, n, 0)
        order_ties(keys, order, n, sort_function)


def argsort_complex(
    argsort_function: int,
    size: Constant,
    x: Array[Bits],
    sorted: Array[int],
    n: int,
    begin: int,
    end: int,
) -> None:
    """Write to ``sorted`` the argsort of rows of ``n`` complex numbers.

    ``argsort_function`` is the address of NumPy's stable argsort of the dtype. An
    element has ``size`` integers (``Bits``). Rows ``begin`` to ``end`` are computed.
    """
    for row in range(begin, end):
        order = sorted + row * n
        for k in range(n):
            order[k] = k
        # The last argument, an array, is for dtypes with fields: a null pointer.
        c_function(argsort_function, x + row * n * size, order, n, 0)


def order_ties(
    keys: Array[int], order: Array[int], count: int, sort_function: int
) -> None:
    """Make an argsort stable: sort the positions of equal keys in ``order``.

    ``order`` has ``count`` positions, and ``keys`` is indexed by them.
    ``sort_function`` is the address of NumPy's sort of int64.
    """
    first = 0
    while first < count:
        key = keys[order[first]]
        last = first + 1
        while last < count and keys[order[last]] == key:
            last += 1
        if last - first > 1:
            # The last argument is for dtypes that are not int64: a null pointer.
            c_function(sort_function, order + first, last - first, 0)
        first = last


def merge(
    sign: Constant,
    magnitude: Constant,
    runs: Array[Bits],
    merged: Array[Bits],
    n: int,
    run: int,
    pairs: int,
    part: int,
    parts: int,
    unpack: int,
    begin: int,
    end: int,
) -> None:
    """Merge pairs of sorted runs; a work item is one part of a merged pair.

    A row of ``n`` elements has ``pairs`` pairs of runs, of ``run`` elements each but
    for the last ones. A merged pair has ``parts`` parts of ``part`` elements. ``runs``
    are codes (of floats), words of a key and a position, or integers, which are
    compared with the bits of ``sign`` inverted. In the last round ``unpack`` is 1:
    codes become floats, and words become positions. Items ``begin`` to ``end`` are
    computed.
    """
    for item in range(begin, end):
        # Items are numbered by row, pair and part. In the row, the pair's runs are
        # elements ``first`` to ``middle`` and ``middle`` to ``last``; the part is
        # elements ``start`` to ``stop`` of the merged pair.
        first = item // parts % pairs * 2 * run
        offset = item // (parts * pairs) * n + first
        middle = min_i64(first + run, n)
        last = min_i64(middle + run, n)
        start = item % parts * part
        stop = min_i64(start + part, last - first)
        if start < stop:
            a, b = runs + offset, runs + (offset + middle - first)
            target = merged + offset
            merge_part(a, middle - first, b, last - middle, target, start, stop, sign)
            if unpack != 0:
                if magnitude == 0:
                    for k in range(start, stop):
                        target[k] = int(target[k]) & POSITION
                else:
                    decode(target + start, stop - start, magnitude, 0)


def split(
    a: Array[Any], count_a: int, b: Array[Any], count_b: int, rank: int, sign: int
) -> int:
    """Return how many of the first ``rank`` merged elements come from run ``a``.

    The runs ``a`` and ``b`` have ``count_a`` and ``count_b`` elements, which are
    compared with the bits of ``sign`` inverted. Of equal elements a's come first. The
    number is found by bisection (Odeh et al., Merge Path, 2012).
    """
    low = max_i64(0, rank - count_b)
    high = min_i64(rank, count_a)
    while low < high:
        middle = (low + high) >> 1
        x, y = int(a[middle]), int(b[rank - 1 - middle])
        if (x ^ sign) <= (y ^ sign):
            low = middle + 1
        else:
            high = middle
    return low


def merge_part(
    a: Array[Any],
    count_a: int,
    b: Array[Any],
    count_b: int,
    target: Array[Any],
    begin: int,
    stop: int,
    sign: int,
) -> None:
    """Write elements ``begin`` to ``stop`` of the merged runs ``a`` and ``b``.

    Of equal elements a's come first. ``count_a``, ``count_b`` and ``sign`` are those of
    ``split``. One loop merges two parts alternately, from ``begin`` and from the
    middle, so that their loads overlap. ``i`` and ``j`` are the next elements of a and
    b for the first part, ``u`` and ``v`` for the second. ``steps`` elements of each can
    be merged before a run or a part ends.
    """
    middle = (begin + stop) >> 1
    i = split(a, count_a, b, count_b, begin, sign)
    u = split(a, count_a, b, count_b, middle, sign)
    j, v = begin - i, middle - u
    k = 0
    steps = 1
    while steps > 0:
        steps = min_i64(middle - begin - k, stop - middle - k)
        steps = min_i64(steps, min_i64(count_a - i, count_b - j))
        steps = min_i64(steps, min_i64(count_a - u, count_b - v))
        for step in range(k, k + steps):
            # ``later`` and ``behind``: whether b's element is less than a's.
            x, y = int(a[i]), int(b[j])
            later = (y ^ sign) < (x ^ sign)
            target[begin + step] = y if later else x
            j += int(later)
            i += 1 - int(later)
            x, y = int(a[u]), int(b[v])
            behind = (y ^ sign) < (x ^ sign)
            target[middle + step] = y if behind else x
            v += int(behind)
            u += 1 - int(behind)
        k += steps
    merge_rest(a, count_a, b, count_b, target, i, begin + k, middle, sign)
    merge_rest(a, count_a, b, count_b, target, u, middle + k, stop, sign)


def merge_rest(
    a: Array[Any],
    count_a: int,
    b: Array[Any],
    count_b: int,
    target: Array[Any],
    i: int,
    k: int,
    stop: int,
    sign: int,
) -> None:
    """Write elements ``k`` to ``stop`` of the merged runs ``a`` and ``b``.

    ``i`` of the first ``k`` merged elements are a's. If one run ends, the other one is
    copied. ``count_a``, ``count_b`` and ``sign`` are those of ``split``.
    """
    j = k - i
    while k < stop:
        steps = min_i64(stop - k, min_i64(count_a - i, count_b - j))
        if steps == 0:
            rest = a + i if i < count_a else b + j
            copy(target + k, rest, stop - k)
            k = stop
        for step in range(k, k + steps):
            x, y = int(a[i]), int(b[j])
            # Whether b's element is less: of equal elements a's comes first.
            later = (y ^ sign) < (x ^ sign)
            target[step] = y if later else x
            j += int(later)
            i += 1 - int(later)
        k += steps


def top_k(
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    values: Array[Bits],
    indices: Array[i32],
    keys: Array[int],
    buffer: Array[int],
    n: int,
    k: int,
    room: int,
    begin: int,
    end: int,
) -> None:
    """Write the ``k`` largest elements of rows of ``n``, of up to 32 bits each.

    ``values`` gets the elements and ``indices`` their positions, the largest first; of
    equal elements the first one is taken. Candidates are collected in ``buffer``, which
    has room for ``room`` of them. When the buffer is full, only the ``k`` largest stay,
    and later elements must be larger than the smallest of these. ``keys`` is scratch
    for a row. ``sort_function`` is the address of NumPy's sort of int64. Rows ``begin``
    to ``end`` are computed.
    """
    for row in range(begin, end):
        # The 0 is the position of the row's first element.
        pack(x + row * n, keys, n, 0, sign, magnitude, infinity)
        count, limit = 0, LARGEST
        for position in range(n):
            # With its key inverted, the word of a larger element is smaller.
            word = keys[position] ^ KEY
            if word < limit:
                buffer[count] = word
                count += 1
                if count == room:
                    # The last argument is for dtypes that are not int64.
                    c_function(sort_function, buffer, count, 0)
                    count = k
                    limit = buffer[k - 1]
        c_function(sort_function, buffer, count, 0)
        for rank in range(k):
            position = buffer[rank] & POSITION
            indices[row * k + rank] = position
            values[row * k + rank] = x[row * n + position]


def top_k_wide(
    argsort_function: int,
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    values: Array[Bits],
    indices: Array[i32],
    keys: Array[int],
    buffer: Array[int],
    n: int,
    k: int,
    room: int,
    begin: int,
    end: int,
) -> None:
    """Write the ``k`` largest elements of rows of ``n``, of 64 bits each.

    ``values`` gets the elements and ``indices`` their positions, the largest first; of
    equal elements the first one is taken. Rows are argsorted by inverted keys.
    ``keys`` and ``buffer`` are scratch for a row; ``room`` is not used.
    ``argsort_function`` and ``sort_function`` are the addresses of NumPy's for int64.
    Rows ``begin`` to ``end`` are computed.
    """
    for row in range(begin, end):
        for position in range(n):
            bits = int(x[row * n + position])
            keys[position] = ~key_of(bits, sign, magnitude, infinity)
            buffer[position] = position
        # The last argument is for dtypes that are not int64: a null pointer.
        c_function(argsort_function, keys, buffer, n, 0)
        order_ties(keys, buffer, n, sort_function)
        for rank in range(k):
            position = buffer[rank]
            indices[row * k + rank] = position
            values[row * k + rank] = x[row * n + position]
