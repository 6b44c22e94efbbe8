"""Saved functions: a folder of text, JSON and arrays, loaded without their source code.

A bundle holds one function, lowered for one or several signatures. It is, for each,
``programs/0.txt`` (the Program as text); ``bundle.json`` (structures of arguments and
results, options, hashes of kernels); arrays, ``constants/0.npy`` and so on; and
``SHA256SUMS``, the hashes of these files. Loading traces nothing and runs no code from
the files, but for edited kernels, ``kernels/0.NAME.py``, if the caller allows them. The
Program is parsed and checked, and its kernels are made again for the machine that loads
it. Names in the file do not become names in kernels, and a kernel that arrayfn's own
compiler does not know is refused. On a machine like the one that saved the bundle,
kernels are compared with their hashes. What was lowered once is found in the disk cache
by the bundle's content (``kept_plans``), and neither parsed nor lowered again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.array_likes import adopted
from arrayfn.backends.registry import choose
from arrayfn.compilation.bundle_description import (
    DESCRIPTION,
    FORMAT,
    constant_file,
    kernel_file,
    program_file,
    read_description,
    structure_of,
)
from arrayfn.compilation.bundle_files import (
    array_bytes,
    check_new_folder,
    content_hash,
    read_array,
    read_files,
    write_files,
)
from arrayfn.compilation.bundle_signatures import (
    Contents,
    Signature,
    kernel_hashes,
    kinds_of,
    machine_of,
)
from arrayfn.compilation.compiled import Compiled
from arrayfn.compilation.self_contained import self_contained
from arrayfn.compilation.stages import Lowered
from arrayfn.compilation.structures import described
from arrayfn.dtypes import short_name
from arrayfn.errors import ArgumentError, BundleError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.text import format_program
from arrayfn.lowering.plan import Kernel
from arrayfn.transforms import check_leaf, leaf_type

Array = np.ndarray[Any, Any]
_C_KEYWORD: Final = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|"
    "goto|if|inline|int|long|main|register|restrict|return|short|signed|sizeof|static|"
    "struct|switch|typedef|union|unsigned|void|volatile|while"
)


def save(
    lowered: Lowered | Sequence[Lowered],
    folder: str | os.PathLike[str],
    *,
    arrays: Mapping[str, Any] | None = None,
) -> None:
    """Write ``lowered``, the result of ``jit(f).lower(*args)``, into a new ``folder``.

    ``load`` turns the folder into a function again. ``lowered`` may be a list of
    signatures. The loaded function chooses one of them by its arguments. Arguments and
    results are arrays in tuples, lists, dicts, named tuples and registered classes. The
    static values of such classes are numbers, strings, dtypes and tuples of them.
    ``arrays`` maps names to pytrees that are saved with the function, such as its
    parameters and the state of an optimizer.

    Kernels that were edited (``with_kernel``, ``register``) are saved, too.

    Raises ArgumentError for other structures, and for a folder that exists and is not
    empty. Also raises it for a function that calls Python functions (``pure_callback``,
    ``debug.print``), has checks or runs on a mesh.

    >>> import tempfile
    >>> import arrayfn as af
    >>> lowered = af.jit(lambda x: {"twice": 2 * x}).lower(np.zeros(3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(lowered, folder, arrays={"start": [np.zeros(3)]})
    ...     again = load(folder)
    >>> again(np.arange(3.0)), again.arrays
    ({'twice': array([0., 2., 4.])}, {'start': [array([0., 0., 0.])]})
    """
    signatures = list(lowered) if isinstance(lowered, Sequence) else [lowered]
    device = _device_of(signatures)
    path = Path(folder)
    check_new_folder("save", path)
    held = _Arrays()
    files: dict[str, bytes] = {}
    description: dict[str, Any] = {
        "format": FORMAT,
        "device": device,
        "machine": machine_of(),
        "signatures": [
            _described_signature(number, signature, held, files)
            for number, signature in enumerate(signatures)
        ],
        "arrays": {name: held.tree(value) for name, value in (arrays or {}).items()},
        "constants": held.types,
    }
    description_text = json.dumps(description, indent=1)
    write_files(
        path, {DESCRIPTION: f"{description_text}\n".encode(), **files, **held.files}
    )


def _device_of(signatures: Sequence[Any]) -> str:
    """Return the device that the ``signatures`` are lowered for.

    Raises ArgumentError if one is no ``Lowered``, and if there are two devices.
    """
    for signature in signatures or [None]:  # none is an error, too
        if not isinstance(signature, Lowered):
            raise ArgumentError(
                f"save: the first argument must be what jit(f).lower(*args) gives, not "
                f"{type(signature).__name__}; give the arguments to lower() first",
                user_location(),
            )
    devices = sorted({signature.backend.name for signature in signatures})
    if len(devices) > 1:
        raise ArgumentError(
            f"save: the signatures are lowered for {', '.join(devices)}; a "
            "bundle is for one device",
            user_location(),
        )
    return devices[0]


class _Arrays:
    """The arrays of a bundle that is written; equal ones are stored once.

    ``files`` has the content of each array by its path, and ``types`` the short name of
    its dtype by its number.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.types: list[str] = []
        self._numbers: dict[str, int] = {}  # of arrays, by dtype and hash

    def add(self, array: Any) -> int:
        """Add ``array``, unless an equal one is there; return its number."""
        content = array_bytes(array)
        key = short_name(array.dtype) + content_hash(content)
        number = self._numbers.setdefault(key, len(self.types))
        if number == len(self.types):
            self.types.append(short_name(array.dtype))
            self.files[constant_file(number)] = content
        return number

    def tree(self, value: Any) -> dict[str, Any]:
        """Add the leaves of a pytree; return structure and leaf numbers as JSON."""
        foreign, structure = tree.flatten(value)
        leaves = [adopted(x) for x in foreign]
        for leaf in leaves:
            check_leaf(leaf, "save: a leaf of arrays")
        numbers = [self.add(np.asarray(x, leaf_type(x).dtype)) for x in leaves]
        return {"structure": described(structure), "numbers": numbers}


def _described_signature(
    number: int, lowered: Lowered, held: _Arrays, files: dict[str, bytes]
) -> dict[str, Any]:
    """Describe one signature as JSON; add its arrays and files.

    The arrays are added to ``held``, and the files to ``files``, which has contents by
    path. ``number`` is the index of the signature, by which its files are named. Raises
    ArgumentError for what a bundle cannot hold.
    """
    if lowered.backend.name == "mesh":
        raise ArgumentError(
            f"save: {lowered.program.name} runs on a mesh of devices, which a bundle "
            "does not hold; lower it for one device, jit(f, device='cpu')",
            user_location(),
        )
    if lowered.sites:
        raise ArgumentError(
            "save: the function was compiled with checks, its own or those of jit, "
            "whose errors name lines of this machine; lower it without",
            user_location(),
        )
    program = self_contained(lowered.program, lowered.backend.name)
    generated = (k for k in lowered.kernels if isinstance(k, Kernel))
    edited = {k.name: k for k in generated if k.is_replaced}
    described_signature: dict[str, Any] = {
        "options": {
            "deterministic": lowered.options.deterministic,
            "mode": lowered.options.mode,
        },
        "donated": sorted(lowered.donated),
        "arguments": described(lowered.in_tree),
        "results": described(lowered.out_tree),
        # The arrays' numbers in the bundle.
        "constants": [held.add(np.asarray(x)) for x in program.constant_values],
        "kernels": kernel_hashes(lowered.kernels),
    }
    text = format_program(program)
    if lowered.open_text is not None:
        if edited:
            raise ArgumentError(
                f"save: {program.name} is lowered for open sizes, and its kernels "
                f"{', '.join(edited)} are edited, which are of one size",
                user_location(),
            )
        text = lowered.open_text.template
        described_signature["open"] = lowered.open_text.described()
    if edited:
        described_signature["edited"] = {
            name: kinds_of(k) for name, k in edited.items()
        }
    files[program_file(number)] = text.encode()
    for name, kernel in edited.items():
        files[kernel_file(number, name)] = kernel.source.encode()
    return described_signature


class Bundle:
    """A saved function: call it with arguments that fit one of its signatures.

    ``signatures`` are the types and structures that the function takes, as text.
    ``arrays`` are the pytrees that were saved with the function, by name.

    >>> import tempfile
    >>> import arrayfn as af
    >>> folder = tempfile.mkdtemp() + "/double"
    >>> af.save(af.jit(lambda x: 2 * x).lower(np.ones(2)), folder)
    >>> isinstance(af.load(folder), af.Bundle)
    True
    """

    def __init__(self, loaded: Sequence[Signature], arrays: dict[str, Any]) -> None:
        self.arrays = arrays
        self._loaded = tuple(loaded)
        # The compiled function by the arguments' structure, shapes and dtypes.
        self._by_types: dict[Any, Compiled] = {}

    @override
    def __repr__(self) -> str:
        return f"<Bundle {'; '.join(self.signatures)}>"

    @property
    def signatures(self) -> tuple[str, ...]:
        """The types of arguments and results, with the names of open sizes."""
        return tuple(str(one) for one in self._loaded)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the signature that fits the arguments; ArgumentError if none does."""
        leaves, structure = tree.flatten((args, kwargs))
        leaves = [adopted(x) for x in leaves]
        types = [leaf_type(x) for x in leaves]
        key = structure, tuple((t.shape, t.dtype) for t in types)
        compiled = self._by_types.get(key)
        if compiled is None:
            compiled = self._by_types[key] = self._chosen(structure, types)
        return compiled.on_leaves(leaves, types)

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        """The compiled function of each signature.

        With open sizes, the function is compiled for one size.
        """
        return tuple(one.example for one in self._loaded)

    def export_c(
        self,
        folder: str | os.PathLike[str],
        name: str | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> tuple[Compiled, ...]:
        """Write the function as C, for this processor, into a new ``folder``.

        For each signature, it writes ``NAME.h``, ``NAME.c`` and the object file
        ``NAME.o``. It also writes ``NAME_main.c``, a program that reads arguments from
        files. ``name`` is the name of the C function. With several signatures, each
        name gets a number. ``sizes`` gives a value for each open size. The C function
        needs neither Python nor BLAS: products are computed by kernels. This method
        returns functions that compute the same bits in Python.

        Raises ArgumentError for library functions that a C program lacks, and names
        them: LAPACK's factorizations and Fourier transforms.

        >>> import tempfile
        >>> import arrayfn as af
        >>> lowered = af.jit(lambda x: 2 * x).lower(np.zeros(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(lowered, Path(folder, "bundle"))
        ...     (twice,) = load(Path(folder, "bundle")).export_c(folder + "/c", "twice")
        ...     sorted(file.name for file in Path(folder, "c").iterdir())
        ['twice.c', 'twice.h', 'twice.o', 'twice_main.c']
        >>> twice(np.arange(3.0))
        array([0., 2., 4.])
        """
        from arrayfn.compilation.exported_c import write_c

        path = Path(folder)
        check_new_folder("export_c", path)
        functions = [one.without_libraries(sizes or {}) for one in self._loaded]
        for number, function in enumerate(functions):
            stem = function.compiled.name if name is None else name
            c_name = stem if len(functions) == 1 else f"{stem}_{number}"
            is_c_name = c_name.isidentifier() and c_name.isascii()
            if not is_c_name or _C_KEYWORD.fullmatch(c_name):
                raise ArgumentError(
                    f"export_c: {c_name!r} is not a valid name of a C function; give "
                    "another name",
                    user_location(),
                )
            write_c(function.compiled, path, c_name)
        return tuple(functions)

    def _chosen(self, structure: tree.TreeDef, types: Sequence[ArrayType]) -> Compiled:
        """Return the first signature that takes arguments of this structure and types.

        Raises ArgumentError if none does.
        """
        refusals: list[ArgumentError] = []
        for one in self._loaded:
            try:
                return one.accepting(structure, types)
            except ArgumentError as error:
                refusals.append(error)
        if len(refusals) == 1:
            raise refusals[0]
        raise ArgumentError(
            f"no signature of the saved function takes {', '.join(map(str, types))}; "
            f"there are {'; '.join(self.signatures)}",
            user_location(),
        )


def load(
    folder: str | os.PathLike[str],
    device: str | None = None,
    *,
    edited_kernels: bool = False,
) -> Bundle:
    """Load the function that ``save`` wrote, for ``device`` or its own device.

    The function takes arguments of the structures, shapes and dtypes that it was
    lowered for. If these contain named tuples or registered classes, import the classes
    before. ``load`` refuses a bundle with edited kernels unless
    ``edited_kernels=True``. It does not check the reads and writes of edited kernels,
    so load them only from someone you trust.

    The first load on a machine compiles the kernels. Then the kernels and the plan are
    in arrayfn's disk cache, and later loads take milliseconds.

    Raises BundleError for a bundle that is broken or was changed, and names the file.
    Raises BackendError if the device is missing. Hashes detect damage and edits, but do
    not say who wrote a bundle. Loading a stranger's bundle does not run code from it,
    but its author chose the computation of the function.

    >>> import tempfile
    >>> import arrayfn as af
    >>> folder = tempfile.mkdtemp() + "/double"
    >>> af.save(af.jit(lambda x: 2 * x).lower(np.ones(2)), folder)
    >>> af.load(folder)(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    path = Path(folder)
    bundle_hash, files = read_files(path)
    description = read_description(path, files)
    edited = [
        name for one in description["signatures"] for name in one.get("edited", ())
    ]
    if edited and not edited_kernels:
        raise BundleError(
            f"{path} has edited kernels ({', '.join(edited)}), whose code is run: "
            "pass edited_kernels=True if you trust who wrote it"
        )
    dtype_of_file = {
        constant_file(k): dtype for k, dtype in enumerate(description["constants"])
    }
    constants = [
        read_array(str(path / name), files[name], dtype)
        for name, dtype in dtype_of_file.items()
    ]
    arrays = {
        name: _tree_of(path, value_description, constants)
        for name, value_description in description["arrays"].items()
    }
    contents = Contents(path, bundle_hash, files, description, constants)
    backend = choose(description["device"] if device is None else device)
    count = len(description["signatures"])
    return Bundle([Signature(contents, k, backend) for k in range(count)], arrays)


def _tree_of(folder: Path, description: Any, constants: Sequence[Array]) -> Any:
    """Rebuild a pytree of arrays that was saved with the function.

    ``description`` is its JSON, as ``_Arrays.tree`` makes it, and ``constants`` are all
    arrays of the bundle.
    """
    match description:
        case {"structure": structure, "numbers": [*numbers]} if len(description) == 2:
            in_tree = structure_of(folder, structure, len(numbers))
            if all(type(k) is int and 0 <= k < len(constants) for k in numbers):
                leaves = [np.array(constants[k]) for k in numbers]
                return tree.unflatten(in_tree, leaves)
        case _:
            pass
    raise BundleError(f"{folder / DESCRIPTION}: 'arrays' are trees of arrays")
