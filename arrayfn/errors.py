"""The errors of arrayfn.

A message names the user's line, the value that was given, and a remedy. Each error also
derives from the built-in error that a NumPy user would catch. ``SourceLocation`` names
a line of the user's code, and ``user_location()`` finds the running line.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import warnings

from typing_extensions import override

from arrayfn.records import frozen

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEMO = os.path.join(_PACKAGE, "tools", "demo.py")  # it is written as a user's program
_PLURALS = {"axis": "axes", "entry": "entries"}  # irregular ones
# Libraries that call functions; their frames are not the user's code.
_LIBRARIES = ("numpy", "optree", "pandas", "scipy")
_STANDARD = sysconfig.get_path("stdlib") + os.sep


@frozen(slots=True)
class SourceLocation:
    """A line of the user's code: the file's path and the line's number, from 1."""

    file: str
    line: int

    @override
    def __str__(self) -> str:
        """Return "name:line", without the file's folder."""
        return f"{printable(os.path.basename(readable_file(self.file)))}:{self.line}"


def printable(text: str) -> str:
    r"""Escape line ends and invisible characters of ``text``, so that it is one line.

    >>> printable("model.py\rimport os")
    'model.py\\rimport os'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def plural(count: int, noun: str) -> str:
    """Return ``count`` and ``noun``, in the plural unless ``count`` is 1.

    >>> plural(1, "step"), plural(2, "axis"), plural(0, "entry")
    ('1 step', '2 axes', '0 entries')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {_PLURALS.get(noun, noun + 's')}"


def readable_file(file: str) -> str:
    """Return the user's name for ``file``, such as the number of a notebook's cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    label = shell.compile.format_code_name(file) if shell is not None else None
    return label[1] if label else file


def user_location() -> SourceLocation | None:
    """Return the innermost running line of the user's code, or None.

    That is code outside arrayfn, Python, NumPy, SciPy, pandas and optree.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return SourceLocation(name, frame.f_lineno)
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Return whether ``file`` is of the user's code.

    It is not if it belongs to arrayfn, to Python's standard library, or to one of
    ``_LIBRARIES``. Packages in site-packages are the user's.
    """
    if file.startswith(_PACKAGE) and file != _DEMO:
        return False
    if file.startswith(("<frozen", _STANDARD)) and "-packages" + os.sep not in file:
        return False
    loaded = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    folders = (os.path.dirname(path) + os.sep for path in loaded if path)
    return not file.startswith(tuple(folders))


class ArrayfnError(Exception):
    """The base of arrayfn's errors.

    ``location`` is the user's line, if it is known, and begins the text. ``message`` is
    the text without the line.
    """

    def __init__(self, message: str, location: SourceLocation | None = None) -> None:
        """Create an error with the text "file:line: message"."""
        self.location = location
        self.message = message
        where = ""
        if location:
            where = f"{printable(readable_file(location.file))}:{location.line}: "
        super().__init__(where + message)


def located(error: ArrayfnError, location: SourceLocation | None) -> ArrayfnError:
    """Return ``error`` with ``location``, if it names no line yet."""
    if error.location is not None or location is None:
        return error
    return type(error)(str(error), location)


class ShapeError(ArrayfnError, ValueError, TypeError):
    """Shapes that do not fit an operation."""


class AxisError(ShapeError, IndexError):
    """An axis that an array does not have."""


class IndexingError(ArrayfnError, IndexError):
    """An index that does not fit an array.

    It has too many entries, a wrong type, or is out of bounds.
    """


class OutOfBoundsError(IndexingError):
    """An index outside its axis, in a function that ``jit`` compiled with checks."""


class RangeError(ArrayfnError, OverflowError):
    """A Python number that its dtype cannot hold."""


class StructureError(ArrayfnError, ValueError):
    """Pytrees whose structures differ."""


class NotFiniteError(ArrayfnError, FloatingPointError):
    """A NaN or an infinity in a function that ``jit`` compiled with checks."""


class DivisionByZeroError(ArrayfnError, FloatingPointError, ZeroDivisionError):
    """A divisor that is zero, in a function that ``jit`` compiled with checks."""


class CheckError(ArrayfnError, AssertionError):
    """A condition of ``check`` that is false."""


class DTypeError(ArrayfnError, TypeError):
    """Data types that do not fit an operation."""


class LayoutError(ArrayfnError, ValueError):
    """A memory layout that cannot be read in place."""


class ArgumentError(ArrayfnError, TypeError):
    """An argument that is not an array, or a parameter out of range."""


class AbstractValueError(ArrayfnError, TypeError):
    """Python asked for the value of an array, which is not known while tracing."""


class TracerLeakError(ArrayfnError, RuntimeError):
    """A tracer that is used after its function has returned."""


class NestingError(ArrayfnError, RecursionError):
    """A deeper nesting of functions than Python's stack holds."""


class InPlaceError(ArrayfnError, TypeError):
    """An in-place change of an immutable value."""


class TracedConversionError(ArrayfnError, TypeError):
    """A traced value where a Python number is needed, which would drop a derivative."""


class DifferentiationError(ArrayfnError, TypeError):
    """A derivative that does not exist, or a derivative of a value that is not real."""


class BundleError(ArrayfnError, ValueError):
    """A saved function that is broken, or was changed."""


class ProgramError(ArrayfnError, ValueError):
    """A Program that breaks a rule of the IR.

    This is a bug of arrayfn, unless you built the Program by hand.
    """


class BackendError(ArrayfnError, RuntimeError):
    """A backend that is missing or cannot do the requested operation."""


class CollectiveError(BackendError):
    """A collective that some members of its group did not reach in time."""


class VerificationError(ArrayfnError, RuntimeError):
    """A plan or kernel that arrayfn made is wrong: a bug of arrayfn."""


class OutOfMemoryError(BackendError, MemoryError):
    """A device that has no memory left.

    The process can continue.
    """


class KernelMismatchError(ArrayfnError, ValueError):
    """An operator's kernel whose results differ from those of the operator's body."""


def warn_of_singular_matrix() -> None:
    """Warn that a sparse system has no solution, with SciPy's MatrixRankWarning."""
    from scipy.sparse.linalg import MatrixRankWarning

    warnings.warn(
        "spsolve: the matrix is singular, so the solution is NaN",
        MatrixRankWarning,
        stacklevel=3,
    )


class DroppedKernelWarning(UserWarning):
    """A transformation uses an operator's body although the operator has kernels."""
