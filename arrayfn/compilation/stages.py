"""The stages between a function and its results: traced, then lowered.

``jit(f).lower(*args)`` gives a ``Lowered``: the Program, kernels and plan, which can be
read and whose kernels can be replaced. Its ``compile()`` gives a ``Compiled`` to call.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from arrayfn import tree
from arrayfn.backends.base import AssemblingBackend, Backend, Executable
from arrayfn.compilation.compiled import OF_THIS_PROCESS, Compiled, with_faults
from arrayfn.compilation.open_sizes import OpenText
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import ExecutionPlan, Kernel, LibraryKernel
from arrayfn.passes.faults import Site
from arrayfn.records import frozen
from arrayfn.transforms.shapes import result_types

if TYPE_CHECKING:
    from arrayfn.compilation.costs import Cost, Memory


@frozen
class Traced:
    """A function traced for one signature, before it is lowered.

    ``program`` is the traced Program, ``in_tree`` the structure of ``(args, kwargs)``,
    and ``out_tree`` the structure of the results. ``lower()`` lowers the Program.
    """

    program: Program
    in_tree: tree.TreeDef
    out_tree: tree.TreeDef
    lower: Callable[[], Lowered]

    @property
    def out_info(self) -> Any:
        """The shapes and data types of the results, as ``eval_shape`` gives them."""
        return result_types(self.program, self.out_tree)

    @override
    def __reduce__(self) -> NoReturn:
        raise TypeError(OF_THIS_PROCESS)


@frozen
class Lowered:
    """A function lowered for one signature, before it is compiled.

    ``program`` is the traced Program. ``kernels`` have a name, a source and the reason
    for their fusion. ``plan`` runs them. ``text()`` shows all of these. If there are
    ``sites``, the last result of the Program says at which site a check failed. If the
    function was lowered for open sizes (``Dim``), ``program`` is the Program of one
    size, and ``open_text`` is the text for all sizes. ``notes`` lists the changes of
    ``freeze``. ``in_tree`` is the structure of ``(args, kwargs)``, ``out_tree`` that of
    the results, and ``donated`` has the indices of inputs that may be overwritten.

    >>> import arrayfn as af
    >>> lowered = af.jit(lambda x: x + 1.0).lower(1.0)
    >>> isinstance(lowered, af.Lowered), len(lowered.kernels)
    (True, 1)
    """

    program: Program
    compiled_program: CompiledProgram
    in_tree: tree.TreeDef
    out_tree: tree.TreeDef
    backend: Backend
    sites: tuple[Site, ...] = ()
    options: Options = DEFAULT
    donated: frozenset[int] = frozenset()
    open_text: OpenText | None = None
    notes: tuple[str, ...] = ()

    @override
    def __reduce__(self) -> NoReturn:
        raise TypeError(OF_THIS_PROCESS)

    @property
    def out_info(self) -> Any:
        """The shapes and data types of the results, as ``eval_shape`` gives them."""
        return result_types(self.program, self.out_tree)

    @property
    def kernels(self) -> tuple[Kernel | LibraryKernel, ...]:
        """The generated kernels and the library calls."""
        return self.compiled_program.kernels

    @property
    def plan(self) -> ExecutionPlan:
        """Buffers and steps."""
        return self.compiled_program.plan

    @override
    def __repr__(self) -> str:
        program = self.compiled_program
        kernels = ", ".join(kernel.name for kernel in self.kernels)
        return (
            f"<Lowered {program.name} for {program.target}: {kernels or 'no kernels'}>"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows, as HTML."""
        from arrayfn.compilation.shown import lowered_html

        return lowered_html(self.program, self.compiled_program)

    def text(self) -> str:
        """Return the Program before and after the passes, the kernels and the plan."""
        parts = [
            str(self.program),
            "# after the passes",
            self.compiled_program.text,
            *[k.source for k in self.kernels if isinstance(k, Kernel)],
            str(self.plan),
        ]
        once = self.compiled_program.once
        if once is not None:
            parts += ["# computed once, from captured arrays", once.program.text]
            parts.append(str(once.program.plan))
        return "\n".join(parts)

    as_text = text  # JAX's name

    def cost(self) -> Cost:
        """Count the operations and bytes of each step of the plan, and of all steps.

        >>> import arrayfn as af
        >>> w, x = np.ones((32, 16)), np.ones((64, 32))
        >>> print(af.jit(lambda w, x: x @ w + 1).lower(w, x).cost())
        step kernel                  runs  operations       bytes  lines
           0 gemm_f64                   1       65536       28672  <doctest ...>:1
           1 elementwise_0              1        1024       16384  <doctest ...>:1
             total                              66560       45056
        """
        from arrayfn.compilation.costs import cost_of

        return cost_of(self.plan)

    def memory(self) -> Memory:
        """Return the bytes of arguments, results, constants and temporaries.

        >>> import arrayfn as af
        >>> print(af.jit(lambda x: x @ x @ x).lower(np.ones((64, 64))).memory())
        inputs 32 KiB, outputs 32 KiB, constants 0 B, temporaries 32 KiB
        """
        from arrayfn.compilation.costs import memory_of

        return memory_of(self.plan)

    def assembly(self, name: str | None = None) -> str:
        """Return the assembly of the kernel ``name``, or of all, for this processor.

        Raises ArgumentError if there is no such kernel, and for a function that is
        lowered for a GPU. For a GPU, use ``ptx``.

        >>> import arrayfn as af
        >>> "ret" in af.jit(lambda x: x + 1).lower(np.ones(3)).assembly()
        True
        """
        return self._assembly(name, "cpu", "ptx() is the PTX of a GPU's kernels")

    def ptx(self, name: str | None = None) -> str:
        """Return the PTX of the kernel ``name``, or of all kernels.

        This needs numba-cuda, but no GPU. Raises ArgumentError if there is no such
        kernel, and for a function that is not lowered for ``device="cuda"``.
        """
        return self._assembly(name, "cuda", "lower jit(f, device='cuda')")

    def _assembly(self, name: str | None, target: str, remedy: str) -> str:
        """Return the assembly of the kernel ``name``, or of all kernels.

        Raises ArgumentError for another backend than ``target``. ``remedy`` is the text
        that the error adds: what to do instead.
        """
        backend = self._backend_of_target(target, remedy)
        assert isinstance(backend, AssemblingBackend)
        kernels = [k for k in self.kernels if isinstance(k, Kernel)]
        if name is not None:
            self._number(name)  # raises if no generated kernel has the name
            kernels = [k for k in kernels if k.name == name]
        texts = (f"// {k.name}\n{backend.assembly(k)}" for k in kernels)
        return "\n".join(texts)

    def _backend_of_target(self, target: str, remedy: str) -> Backend:
        """Return the backend if its name is ``target``; else raise ArgumentError.

        ``remedy`` is the text that the error adds: what to do instead.
        """
        if self.backend.name != target:
            raise ArgumentError(
                f"{self.compiled_program.name} is lowered for {self.backend.name}, not "
                f"{target}: {remedy}",
                user_location(),
            )
        return self.backend

    def _number(self, name: str) -> int:
        """Return the index in ``kernels`` of the generated kernel ``name``.

        Raises ArgumentError if there is none.
        """
        generated = [k.name for k in self.kernels if isinstance(k, Kernel)]
        if name not in generated:
            raise ArgumentError(
                f"there is no generated kernel {name!r}; "
                f"there are {', '.join(generated) or 'none'}",
                user_location(),
            )
        return [kernel.name for kernel in self.kernels].index(name)

    def with_kernel(self, name: str, source: str) -> Lowered:
        """Return a copy with another source for the kernel ``name``.

        ``source`` is Python that defines a function of that name with the kernel's
        parameters. It may use all functions that printed kernels use, and everything
        that Numba compiles for pointers and integers. On a CPU it must do only the work
        items from ``begin`` to ``end``. On a GPU every thread runs it. Raises
        ArgumentError if there is no such kernel, or if ``source`` does not define the
        function with these parameters.

        >>> import arrayfn as af
        >>> lowered = af.jit(lambda x: x + x).lower(np.zeros(3))
        >>> (kernel,) = lowered.kernels
        >>> edited = kernel.source.replace("x + x", "x - x")
        >>> lowered.with_kernel(kernel.name, edited).compile()(np.ones(3))
        array([0., 0., 0.])
        """
        kernels = list(self.kernels)
        number = self._number(name)
        kernel = kernels[number]
        assert isinstance(kernel, Kernel)
        _check_definition(source, kernel)
        kernels[number] = replace(
            kernel, source=source, key=source, reason=f"replaced; was {kernel.reason}"
        )
        program = replace(self.compiled_program, kernels=tuple(kernels))
        return replace(self, compiled_program=program)

    def freeze(self, *recipes: str) -> Lowered:
        """Return a copy with folded captured arrays, for functions of trained weights.

        ``freeze`` computes the values that depend only on captured arrays. ``notes``
        has a line on each array. Recipes change captured weights of matrix products and
        convolutions:

        * ``"scales"``: factors and terms of output features, such as those of batch
          normalisation, become part of the weights and of one added vector. Results
          then differ by rounding.
        * ``"transposes"``: a matrix that a product would copy in each call is stored in
          the order in which the product reads it.
        * ``"bfloat16"``, ``"float16"``, ``"float8_e4m3fn"``, ``"float8_e5m2"``,
          ``"int8"``, ``"int4"``: weights are stored in this dtype, and converted where
          they are read. All but the first two get a scale for each output feature. Two
          int4 numbers are packed into a byte.

        Raises ArgumentError for other recipes, two casts, and functions with checks.

        >>> import arrayfn as af
        >>> w, scale = np.ones((3, 2)), np.array([2.0, 4.0])
        >>> lowered = af.jit(lambda x: (x @ w - 1.0) * scale).lower(np.ones((1, 3)))
        >>> frozen = lowered.freeze("scales")
        >>> print(*frozen.notes)
        f64[3,2]: sub, mul folded into the weights of dot_general  (<doctest ...>:1)
        >>> frozen.compile()(np.ones((1, 3)))
        array([[4., 8.]])
        """
        from arrayfn.compilation.freezing import freeze_program

        if self.sites or self.open_text is not None:
            raise ArgumentError(
                f"freeze: {self.program.name} has checks or open sizes; lower it "
                "without",
                user_location(),
            )
        program, notes = freeze_program(
            self.program, recipes, KERNELS.has_for(self.backend.name)
        )
        compiled = self.backend.lower(program, self.donated, self.options)
        return replace(self, program=program, compiled_program=compiled, notes=notes)

    def eject(self, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write each generated kernel as a file that runs, into a new ``folder``.

        ``NAME.py`` is a kernel's source. If you run the file as a script, it calls the
        kernel on the arguments of the kernel's first call, which are in ``NAME.npz``.
        Then it compares the results with those of that call. The script runs a CPU
        kernel as Python and compiled. It runs a GPU kernel in the emulator, compiles it
        to PTX, and runs it on the GPU if there is one. ``register`` puts edited files
        into use, in this process or another. The arguments of the call are ``args``, or
        random numbers if they are omitted.

        Raises ArgumentError for a function that is lowered neither for a CPU nor for a
        GPU, and for a folder that exists and is not empty. On a machine without a GPU,
        also raises it for GPU kernels that are too large for the emulator.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import arrayfn as af
        >>> lowered = af.jit(lambda x: x + x).lower(np.zeros(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lowered.eject(folder, np.ones(3))
        ...     file = Path(folder, "elementwise_0.py")
        ...     _ = file.write_text(file.read_text().replace("x + x", "x - x"))
        ...     edited = lowered.register(folder)
        >>> edited.compile()(np.ones(3))
        array([0., 0., 0.])
        """
        from arrayfn.compilation.ejected import TARGETS, write_kernels

        if self.compiled_program.target not in TARGETS or self.backend.name == "mesh":
            raise ArgumentError(
                f"eject: kernels for {self.backend.name!r} do not run by themselves; "
                "lower jit(f, device='cpu') or jit(f, device='cuda')",
                user_location(),
            )
        leaves, structure = tree.flatten((args, kwargs))
        if leaves and structure != self.in_tree:
            raise ArgumentError(
                f"eject: this was lowered for arguments of structure "
                f"{tree.text_of(self.in_tree)}, not {tree.text_of(structure)}",
                user_location(),
            )
        write_kernels(self.compiled_program, Path(folder), leaves)

    def register(self, folder: str | os.PathLike[str]) -> Lowered:
        """Return a copy with the kernels edited in a folder that ``eject`` wrote.

        Raises ArgumentError if the folder has none of this function's kernels, or if a
        file does not define its kernel with the same parameters.
        """
        from arrayfn.compilation.ejected import read_kernels

        edited = self
        for name, source in read_kernels(self.kernels, Path(folder)).items():
            edited = edited.with_kernel(name, source)
        return edited

    def load(self) -> Executable:
        """Return the callable of flat arrays, which raises the errors of checks."""
        return with_faults(self.backend.load(self.compiled_program), self.sites)

    def compile(self) -> Compiled:
        """Compile the function, which takes arguments of the lowered structure."""
        run, backend = self.load(), self.backend
        trees = self.in_tree, self.out_tree
        return Compiled(self.compiled_program, run, *trees, backend, self.sites)


def _check_definition(source: str, kernel: Kernel) -> None:
    """Raise ArgumentError unless ``source`` defines ``kernel``'s function.

    Its parameters must be the kernel's; a kernel for the CPU also has ``begin`` and
    ``end``, the range of elements that one call computes.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ArgumentError(
            f"the source for {kernel.name} is not Python: {error}", user_location()
        ) from None
    expected = [parameter.name for parameter in kernel.parameters]
    if not kernel.threads:
        expected += ["begin", "end"]
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == kernel.name:
            defined = [argument.arg for argument in node.args.args]
            if defined != expected:
                raise ArgumentError(
                    f"{kernel.name} must have the parameters {', '.join(expected)}, "
                    f"not {', '.join(defined)}: the plan passes these",
                    user_location(),
                )
            return
    raise ArgumentError(
        f"the source defines no function {kernel.name}", user_location()
    )
