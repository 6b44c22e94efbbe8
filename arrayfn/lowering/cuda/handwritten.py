"""Kernels whose body is written by hand as a template, and the calls of them.

A body consists of statements in the two vocabularies, that of scalars and that of CUDA.
The kernel's parameters are the arrays and integers that a call names; its imports
follow from the functions that the body calls.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.imports import imports
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.kernel_text import wrapped
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.steps import CallStep
from arrayfn.records import frozen

_ALONE_IN_LINE: Final = re.compile(r"( *)\{(\w+)\}")
"""A line of a template that has only a name in braces: its indentation, the name."""


@frozen
class Handwritten:
    """A kernel with a body written by hand, and what a launch of it needs.

    Args:
        stem: The beginning of the kernel's name.
        body: The statements of its function, without indentation.
        threads: Threads of a block.
        doc: The first line of the function's docstring.
        reason: What the kernel computes, for the plan's text.
        shared: Bytes of a block's dynamic shared memory.
        blocks_per_multiprocessor: Blocks that a multiprocessor must have room for; 0
            sets no limit.
        cluster: Blocks of a cluster.
    """

    stem: str
    body: str
    threads: int
    doc: str
    reason: str
    shared: int = 0
    blocks_per_multiprocessor: int = 0
    cluster: int = 1

    def kernel(
        self, name: str, arrays: Mapping[str, str], integers: Iterable[str]
    ) -> Kernel:
        """Make the kernel ``name`` with these parameters.

        ``arrays`` maps the name of each pointer parameter to its short dtype, in order;
        the integer parameters ``integers`` follow. Kernels with equal keys are compiled
        once, so the key leaves out the name and the docstring.
        """
        parameters = [Parameter(n, f"{dtype}*") for n, dtype in arrays.items()]
        parameters += [Parameter(n, "i64") for n in integers]
        signature = ", ".join(f"{p.name}: {p.kind}" for p in parameters)
        lines = textwrap.wrap(f"{signature}. {self.threads} threads a block.", 80)
        kinds = ", ".join(p.kind for p in parameters)
        return Kernel(
            name=name,
            source=_function(name, parameters, self.body, [self.doc, "", *lines]),
            key=f"{_function('kernel', parameters, self.body)}# {kinds}\n",
            parameters=tuple(parameters),
            reason=self.reason,
            threads=self.threads,
            shared=self.shared,
            blocks_per_multiprocessor=self.blocks_per_multiprocessor,
            cluster=self.cluster,
        )


@frozen
class HandwrittenCall:
    """A launch of a handwritten kernel.

    Args:
        text: The kernel.
        reads: The arrays that the kernel only reads, by the names of its parameters.
        writes: The arrays that the kernel writes and may read, by the names of its
            parameters.
        integers: The integer arguments, by their names; they follow the pointers.
        blocks: How many blocks to launch.
        over: Pairs of a result and an operand in whose memory the result may be
            written.
        flag_buffer: The memory for look-back or a work queue, if the kernel uses one.
            It is the parameter ``flag_buffer``, after the other pointers.
    """

    text: Handwritten
    reads: Mapping[str, Pointer]
    writes: Mapping[str, Pointer]
    integers: Mapping[str, int]
    blocks: int
    over: Sequence[tuple[Var, Var]] = ()
    flag_buffer: Var | None = None

    @property
    def _written(self) -> dict[str, Pointer]:
        """The arrays that the kernel writes, with the flag buffer, by parameter."""
        if self.flag_buffer is None:
            return dict(self.writes)
        return {**self.writes, "flag_buffer": Pointer(self.flag_buffer)}

    def kernel(self, name: str) -> Kernel:
        """Make the kernel that the call launches, with the name ``name``."""
        arrays = {**self.reads, **self._written}
        types = {n: short_name(p.array.type.dtype) for n, p in arrays.items()}
        return self.text.kernel(name, types, self.integers)

    def step(self, kernel: str) -> CallStep:
        """Return the plan's step that launches the kernel named ``kernel``.

        The step's pointers are arrays with offsets in bytes; a work item is a block.
        """
        pointers = (*self.reads.values(), *self._written.values())
        return CallStep(
            kernel=kernel,
            pointers=[
                (p.array, p.offset * p.array.type.dtype.itemsize) for p in pointers
            ],
            scratch=[],
            integers=list(self.integers.values()),
            items=self.blocks,
            grain=1,
            scratch_bytes=0,
            reads=[p.array for p in self.reads.values()],
            writes=[p.array for p in self._written.values()],
            over=list(self.over),
        )


def _function(
    name: str, parameters: Sequence[Parameter], body: str, doc: Sequence[str] = ()
) -> str:
    """Return the source of a kernel: its imports, and its function ``name``.

    Args:
        name: The function's name.
        parameters: Its parameters.
        body: Its statements, without indentation.
        doc: The lines of its docstring, if it has one.
    """
    lines = [line for line in body.splitlines() if line.strip()]
    head = wrapped(f"def {name}(", ", ".join(p.name for p in parameters), "):")
    text = [f'"""{doc[0]}', *doc[1:], '"""', ""] if doc else []
    statements = indented([*text, *lines], 1)
    return "\n".join([*imports(lines), "", "", *head, statements, ""])


Lowered = LibraryCall | Nest | HandwrittenCall
"""What the lowering of an equation yields; ``_CudaLowering.add_all`` makes it steps."""


def flag_buffer_of(values: int, dtype: DType) -> Var:
    """Make a flag buffer, an array of u64, with ``values`` slots for ``dtype``.

    The first word counts launches. Each 32 bits of a value have a word of their own:
    the flag of a slot is in the other half of its words. So a slot has one word for a
    float32, and two for a float64.
    """
    words = 1 + values * max(1, dtype.itemsize // 4)
    return Var(ArrayType((words,), dtypes.uint64))


def fill_template(template: str, **parts: str | int | Iterable[str]) -> str:
    """Replace the names in braces of ``template`` by ``parts``.

    A name that is alone in its line may become several lines: its part is a text or an
    iterable of lines. They are indented as that line is. A template of the lines ``if
    x:`` and, indented, ``{body}`` becomes, for the two lines of ``body``:

        if x:
            a = 1
            b = 2
    """
    lines: list[str] = []
    for line in template.splitlines():
        alone = _ALONE_IN_LINE.fullmatch(line)
        if alone is None:
            lines.append(line.format(**parts))
            continue
        indent, name = alone.groups()
        part = parts[name]
        text = str(part) if isinstance(part, str | int) else "\n".join(part)
        lines.append(textwrap.indent(text.strip("\n"), indent))
    return "\n".join(lines)


def converted(value: str, source: str, target: str) -> str:
    """Return the expression of ``value``, of the dtype ``source``, as ``target``.

    Both are short names. In memory half precision is u16, which this reads or gives.
    """
    return value if source == target else f"convert_{source}_{target}({value})"


def indented(text: str | Iterable[str], levels: int) -> str:
    """Indent each line of ``text`` by ``levels`` of four spaces, except empty lines."""
    lines = text.splitlines() if isinstance(text, str) else text
    return "\n".join("    " * levels + line if line else "" for line in lines)
