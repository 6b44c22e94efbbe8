"""``Ref``: a place that holds an array, which the code of a function may change.

A Ref is Python's: Programs have none. Writing replaces the value that it holds, so what
is traced are updates of values. A Ref belongs to the frame that it was made in. A body
that is traced in a frame of its own (of a loop or a branch) reads it as it reads any
captured value. If it writes, ``RefWrittenError`` tells the construct, which traces the
body again with the value as an argument and a result: see ``discharged``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from typing_extensions import override

from arrayfn.errors import ArgumentError, TracerLeakError, user_location
from arrayfn.ir import ArrayType, type_of
from arrayfn.tracing.array_value import ImmutableArray, Typed
from arrayfn.tracing.frames import Frame, current_frame
from arrayfn.tracing.methods import namespace
from arrayfn.tracing.staging import constant

T = TypeVar("T")


class Ref(Typed):
    """A reference to an array of fixed shape and dtype: see ``new_ref``.

    ``ref[...]`` is the value. ``ref[i] = y`` changes a part of it, for any index that
    an array takes. ``ref[...] += y`` does both. Writes out of bounds are dropped, as in
    ``x.at[i].set(y)``.
    """

    __slots__ = ("__weakref__", "_home", "_type", "_value")

    def __init__(self, value: Any) -> None:
        """Make a Ref that holds ``value``, and belongs to the current frame."""
        self._type: ArrayType = (
            value.type if isinstance(value, ImmutableArray) else type_of(value)
        ).plain()
        self._home = current_frame()
        self._value = value

    @property
    @override
    def type(self) -> ArrayType:
        """The shape and dtype of every value that the Ref holds."""
        return self._type

    def __len__(self) -> int:
        """Return the extent of axis 0."""
        if not self.shape:
            raise TypeError("len() of a Ref of rank 0")
        return self.shape[0]

    def get(self) -> Any:
        """Return the current value; copy a NumPy array, which ``+=`` may change."""
        value = self.current()
        return constant(value.copy()) if isinstance(value, np.ndarray) else value

    def current(self) -> Any:
        """Return the current value, without a copy.

        It is the value in the innermost frame that has adopted the Ref, or else the
        value in the frame that the Ref belongs to.
        """
        for frame in self._frames("read"):
            if frame is not self._home and self in frame.references:
                return frame.references[self]
        return self._value

    def set(self, value: Any) -> None:
        """Set the value to ``value``, converted to the Ref's shape and dtype."""
        value = namespace().functions["broadcast_to"](value, self.shape)
        self._replace(namespace().functions["astype"](value, self.dtype))

    def swap(self, value: Any) -> Any:
        """Set the value to ``value``, and return the previous value."""
        before = self.get()
        self.set(value)
        return before

    def __getitem__(self, index: Any) -> Any:
        """Return the value, or with another index than ``...`` a part of it."""
        value = self.get()
        return value if index is ... else namespace().functions["getitem"](value, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set the value, or with another index than ``...`` a part of it."""
        if index is ...:
            self.set(value)
        else:
            self._replace(namespace().functions["at"](self.current())[index].set(value))

    def _replace(self, value: Any) -> None:
        """Store ``value``; in a nested trace, as the Ref's value in the current frame.

        ``_home`` is the frame in which the Ref was made. Other frames keep the values
        of Refs that they have adopted in ``references``. Raises RefWrittenError if the
        current frame has not adopted the Ref.
        """
        self._frames("written to")  # raises an error if the Ref cannot be used here
        frame = current_frame()
        if frame is self._home:
            self._value = value
            return
        assert frame is not None
        if self not in frame.references:
            raise RefWrittenError(self, frame)
        frame.references[self] = value

    def _frames(self, done: str) -> list[Frame]:
        """Return the frames from the current one out to the one that has made the Ref.

        ``done`` says in messages what is done to the Ref, such as "read". Raises
        TracerLeakError if the function that made the Ref has returned, and
        ArgumentError if a compiled function uses a Ref from outside that is not its
        argument.
        """
        frames: list[Frame] = []
        frame = current_frame()
        while frame is not None:
            frames.append(frame)
            if frame is self._home:
                return frames
            # Only the frames of functions that are compiled have a platform.
            if frame.platform and self._home is None and self not in frame.references:
                raise ArgumentError(
                    f"{frame.name!r} is compiled, and a Ref ({self.type}) that was "
                    f"made outside of it is {done}: only this first call would do "
                    "that. Pass the Ref as an argument",
                    user_location(),
                )
            frame = frame.parent
        if self._home is not None:
            raise TracerLeakError(
                f"a Ref ({self.type}) is {done} after {self._home.name!r}, the "
                "function that it was made in, has returned; return ref[...], its "
                "value",
                user_location(),
            )
        return frames

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Raise ArgumentError: a Ref is no array."""
        raise ArgumentError(
            f"a Ref ({self.type}) is not an array; ref[...] is the one that it holds",
            user_location(),
        )

    @override
    def __repr__(self) -> str:
        """Return ``Ref(type)``."""
        return f"Ref({self.type})"


class RefWrittenError(ArgumentError):
    """Raised when a function that is traced writes to a Ref from outside.

    For bodies of loops and branches ``discharged`` catches it, and traces them again.
    ``frame`` is the frame that wrote to ``ref``.
    """

    def __init__(self, ref: Ref, frame: Frame) -> None:
        """Make the message for a write to ``ref`` in ``frame``."""
        super().__init__(
            f"{frame.name!r} writes to a Ref ({ref.type}) that was made outside of it. "
            "That is for bodies of loops and branches (scan, fori_loop, while_loop, "
            "map, cond, switch) and jitted functions; what grad, vmap or checkpoint "
            "takes returns the value instead",
            user_location(),
        )
        self.ref = ref
        self.frame = frame


def discharged(construct: Callable[[Sequence[Ref]], T]) -> T:
    """Trace a loop or branch so that Refs its bodies write to become operands.

    ``construct(refs)`` traces the bodies, with the values of ``refs`` as additional
    operands and results, and writes the last values back. A write to another Ref raises
    RefWrittenError. ``construct`` is then called again with that Ref added, until no
    error is raised. Returns what ``construct`` returns.
    """
    refs: list[Ref] = []
    while True:
        try:
            return construct(refs)
        except RefWrittenError as written:
            if not is_of_a_body(written) or written.ref in refs:
                raise
            refs.append(written.ref)


def is_of_a_body(written: RefWrittenError) -> bool:
    """Whether a frame directly inside the current one wrote to the Ref."""
    return written.frame.parent is current_frame()


def check_given_once(name: str, leaves: Sequence[Any]) -> None:
    """Raise ArgumentError if a Ref is twice among ``leaves``, arguments of ``name``."""
    refs = [x for x in leaves if type(x) is Ref]
    if len(set(map(id, refs))) < len(refs):
        raise ArgumentError(
            f"{name} is given one Ref twice, and would write to it under two names; "
            "give it once, or copies: new_ref(ref[...])",
            user_location(),
        )


def check_not_returned(name: str, leaf: Any) -> None:
    """Raise ArgumentError if ``leaf``, which ``name`` returned, is a Ref."""
    if isinstance(leaf, Ref):
        raise ArgumentError(
            f"{name} returned a Ref ({leaf.type}), which is of no use outside; return "
            "ref[...], its value",
            user_location(),
        )


def adopt(refs: Sequence[Ref], values: Sequence[Any]) -> None:
    """Set ``refs`` to ``values`` in the current frame, which may then write to them."""
    frame = current_frame()
    assert frame is not None
    frame.references.update(zip(refs, values, strict=True))


def held(refs: Sequence[Ref]) -> list[Any]:
    """Return the current values of ``refs``."""
    return [ref.current() for ref in refs]


def within(function: Callable[..., Any], refs: Sequence[Ref]) -> Callable[..., Any]:
    """Wrap ``function`` to take the values of ``refs`` as additional first argument.

    The wrapped function returns (result of ``function``, values of ``refs`` after it).
    """

    def inner(values: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Adopt ``values``, call the function, and return the new values too."""
        adopt(refs, values)
        return function(*args, **kwargs), held(refs)

    return inner


def write_back(refs: Sequence[Ref], values: Sequence[Any]) -> None:
    """Set ``refs`` to ``values``, which have their shapes and dtypes."""
    for ref, value in zip(refs, values, strict=True):
        ref._replace(value)
