"""A compiled function as C: a header, a C file that walks its plan, an object file.

The object file has the kernels and the captured arrays; the C file calls the kernels in
the plan's order, on one thread. The results have the bits that the plan gives in
Python: they do not depend on the number of threads. What a library computes at an
address of this process (LAPACK, FFT, Python functions) cannot be exported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.backends.cpu.code import kernel_text
from arrayfn.backends.cpu.signals import check_signals
from arrayfn.backends.native import target
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, BackendError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Argument,
    Branch,
    BufferAllocation,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    Loop,
    ScratchArgument,
    Step,
)

_C_TYPES: Final[dict[DType, str]] = {
    dtypes.bool_: "uint8_t",
    dtypes.int8: "int8_t",
    dtypes.int16: "int16_t",
    dtypes.int32: "int32_t",
    dtypes.int64: "int64_t",
    dtypes.uint8: "uint8_t",
    **dict.fromkeys(dtypes.STORAGE, "uint8_t"),
    dtypes.uint16: "uint16_t",
    dtypes.uint32: "uint32_t",
    dtypes.uint64: "uint64_t",
    dtypes.float16: "uint16_t",
    dtypes.bfloat16: "uint16_t",
    dtypes.float32: "float",
    dtypes.float64: "double",
    dtypes.complex64: "float",
    dtypes.complex128: "double",
}
_LINE: Final = 64
"""The alignment of arrays in bytes: a cache line."""
# What C libraries have; the linker finds it with -lm.
_OF_C: Final = frozenset(
    {"memcpy", "memset", "memmove", "fmod", "fmodf", "pow", "powf", "ldexp", "ldexpf"}
)


_PROGRAM: Final = """\
/* @NAME@_main @FILES@
   Each is a file of an array's bytes. Build the program with
   cc -O2 @NAME@_main.c @NAME@.c @NAME@.o -lm -o @NAME@_main */
#include "@NAME@.h"
#include <stdio.h>
#include <stdlib.h>

enum { INPUTS = @INPUT_COUNT@, ALL = @COUNT@ };

int main(int count, char **files)
{
  static const size_t sizes[ALL] = {@SIZES@};
  void *held[ALL];
  if (count != ALL + 1) {
    fprintf(stderr, "usage: %s @FILES@\\n", files[0]);
    return 2;
  }
  for (int k = 0; k < ALL; ++k) {
    held[k] = aligned_alloc(@LINE@, (sizes[k] / @LINE@ + 1) * @LINE@);
    if (!held[k]) return 3;
    if (k >= INPUTS) continue;
    FILE *file = fopen(files[k + 1], "rb");
    if (!file || fread(held[k], 1, sizes[k], file) != sizes[k]) {
      fprintf(stderr, "%s: not %zu bytes\\n", files[k + 1], sizes[k]);
      return 4;
    }
    fclose(file);
  }
  if (@NAME@(@PASSED@)) return 3;
  for (int k = INPUTS; k < ALL; ++k) {
    FILE *file = fopen(files[k + 1], "wb");
    if (!file || fwrite(held[k], 1, sizes[k], file) != sizes[k]) {
      fprintf(stderr, "%s cannot be written\\n", files[k + 1]);
      return 5;
    }
    fclose(file);
  }
  return 0;
}
"""


def write_c(compiled: CompiledProgram, folder: Path, name: str) -> None:
    """Write ``compiled``, for a CPU and completed, as the C function ``name``.

    The files are ``NAME.h``, ``NAME.c``, ``NAME_main.c`` and ``NAME.o``. Raises
    ArgumentError for what cannot be exported, with the names of the kernels.
    """
    for number, type in enumerate((*compiled.input_types, *compiled.output_types)):
        lowest, _ = type.span()
        if lowest < 0:
            raise ArgumentError(
                f"export_c: array {number} of {compiled.name} is {type}, whose first "
                "element is not the lowest in memory; lower it for another layout",
                user_location(),
            )
    symbols = {k.name: f"{name}_kernel_{n}" for n, k in enumerate(compiled.kernels)}
    # Kernels with long loops ask whether to go on.
    asks = f"{name}_look"
    texts = [
        (text.replace(check_signals.symbol, asks), interleave)
        for text, interleave in _texts(compiled, symbols)
    ]
    content, needed = target.linked_object([_constants_text(compiled, name), *texts])
    missing = needed - {asks, *symbols.values()} - _OF_C
    if missing:
        raise ArgumentError(
            f"export_c: {compiled.name} calls {', '.join(sorted(missing))}, functions "
            "of this process",
            user_location(),
        )
    folder.mkdir(parents=True, exist_ok=True)
    source = _Source(compiled, name, symbols)
    files = {
        f"{name}.h": source.header(),
        f"{name}.c": source.body(is_looking=asks in needed),
        f"{name}_main.c": source.program(),
    }
    for file, text in files.items():
        (folder / file).write_text(text, "ascii")
    (folder / f"{name}.o").write_bytes(content)


def _texts(
    compiled: CompiledProgram, symbols: dict[str, str]
) -> Iterator[tuple[str, bool]]:
    """Yield the LLVM IR of each kernel, and whether its loops are interleaved.

    ``symbols`` are the names of their functions. Raises ArgumentError with the names of
    kernels that call libraries of this process.
    """
    refused: list[str] = []
    for kernel in compiled.kernels:
        try:
            yield kernel_text(kernel, symbols[kernel.name])
        except BackendError as error:
            if isinstance(kernel, Kernel):
                raise
            refused.append(str(error))
    if refused:
        raise ArgumentError(
            f"export_c: {compiled.name} needs what a C program does not have: "
            f"{'; '.join(refused)}",
            user_location(),
        )


def _constants_text(compiled: CompiledProgram, name: str) -> tuple[str, bool]:
    """Return LLVM IR of one constant that holds all captured arrays, at ``_offsets``.

    The constant is called ``NAME_constants``, after the C function ``name``. The second
    result says that the text has no loops to interleave.
    """
    content = bytearray()
    for array, offset in zip(compiled.constants, _offsets(compiled), strict=True):
        content += bytes(offset - len(content))
        content += _in_memory_order(array)
    hexadecimal = content.hex()
    pairs = (hexadecimal[k : k + 2] for k in range(0, len(hexadecimal), 2))
    text = "".join(f"\\{pair}" for pair in pairs)
    size = len(content)
    kind = f'[{size} x i8] c"{text}"' if size else "[1 x i8] zeroinitializer"
    triple = target.host().triple
    head = f'target triple = "{triple}"\n'
    return f"{head}@{name}_constants = constant {kind}, align {_LINE}\n", False


def _offsets(compiled: CompiledProgram) -> list[int]:
    """Return the byte offset of each captured array in the constant."""
    offsets: list[int] = []
    end = 0
    for array in compiled.constants:
        offsets.append(end)
        end = _aligned(end + array.nbytes)
    return offsets


def _aligned(nbytes: int) -> int:
    """Round ``nbytes`` up to a multiple of ``_LINE``."""
    return -(-nbytes // _LINE) * _LINE


class _Source:
    """Writes the C files of ``compiled``, as the C function ``name``.

    Attributes:
        symbols: the symbols of the kernels, by their names.
        lines: the lines of ``body`` so far.
    """

    def __init__(
        self, compiled: CompiledProgram, name: str, symbols: dict[str, str]
    ) -> None:
        self.compiled = compiled
        self.name = name
        self.symbols = symbols
        self.plan: ExecutionPlan = compiled.plan
        self.lines: list[str] = []

    # The header.

    def parameters(self) -> list[str]:
        """Return the parameters of the function, in C."""
        arguments = [
            f"const {_C_TYPES[t.dtype]} *in{k}"
            for k, t in enumerate(self.compiled.input_types)
        ]
        results = [
            f"{_C_TYPES[t.dtype]} *out{k}"
            for k, t in enumerate(self.compiled.output_types)
        ]
        return [*arguments, *results]

    def declaration(self) -> str:
        """Return the declaration of the function in C, without a semicolon."""
        return f"int {self.name}({', '.join(self.parameters()) or 'void'})"

    def header(self) -> str:
        """Return the header: the function's declaration, and a comment on pointers."""
        lines = [
            f"/* {self.name}: a function that arrayfn compiled for this processor,",
            f"   {target.host().cpu}. Returns 0, or -1 where memory is out.",
            "",
        ]
        for word, types in (
            ("in", self.compiled.input_types),
            ("out", self.compiled.output_types),
        ):
            lines += [f"   {word}{k}: {_shown(t)}" for k, t in enumerate(types)]
        guard = f"{self.name.upper()}_H"
        return "\n".join(
            [
                *lines,
                "",
                "   Arrays are row-major unless strides are given, in elements. Those",
                "   of float16, bfloat16, float8 and int4 are bits, complex numbers",
                "   are pairs. */",
                f"#ifndef {guard}",
                f"#define {guard}",
                "#include <stdint.h>",
                "#ifdef __cplusplus",
                'extern "C" {',
                "#endif",
                f"{self.declaration()};",
                "#ifdef __cplusplus",
                "}",
                "#endif",
                "#endif",
                "",
            ]
        )

    # The function.

    def body(self, *, is_looking: bool) -> str:
        """Return the C file with the function, which runs the steps of the plan.

        With ``is_looking`` it defines what kernels with long loops call to ask whether
        to go on.
        """
        plan = self.plan
        self.lines = [
            f'#include "{self.name}.h"',
            "#include <stdlib.h>",
            "#include <string.h>",
            "",
            f"extern const char {self.name}_constants[];",
        ]
        entry = "(const int64_t *arguments, int64_t begin, int64_t end)"
        self.lines += [f"void {symbol}{entry};" for symbol in self.symbols.values()]
        if is_looking:
            self.lines += [f"int64_t {self.name}_look(void) {{ return 0; }}"]
        # One block of memory has the arena, then the scratch memory.
        size = max(_LINE, _aligned(_aligned(plan.arena) + plan.scratch))
        self.lines += [
            "",
            self.declaration(),
            "{",
            f"  char *arena = aligned_alloc({_LINE}, {size});",
            "  if (!arena) return -1;",
        ]
        self.lines += [
            f"  char *b{number} = {self.address(b)};  /* {b.label}: {b.type} */"
            for number, b in enumerate(plan.buffers)
        ]
        # A result that is written over an argument begins with the argument's bytes.
        for number, b in enumerate(plan.buffers):
            if b.kind == "output" and b.donor is not None:
                self.lines.append(
                    f"  if (b{number} != (char *)in{b.donor}) "
                    f"memcpy(b{number}, in{b.donor}, {b.nbytes});"
                )
        self.steps(plan.steps, "  ")
        unused = "".join(f" (void)b{k};" for k in range(len(plan.buffers)))
        self.lines += [f" {unused}" if unused else "", "  free(arena);"]
        self.lines += ["  return 0;", "}", ""]
        return "\n".join(self.lines)

    def address(self, buffer: BufferAllocation) -> str:
        """Return the address of a buffer in C; 0 for one that a loop sets."""
        match buffer.kind:
            case "input":
                return f"(char *)in{buffer.index}"
            case "output":
                return f"(char *)out{buffer.index}"
            case "constant":
                offset = _offsets(self.compiled)[buffer.index]
                return f"(char *){self.name}_constants + {offset}"
            case "temporary":
                return f"arena + {buffer.offset}"
            case _:
                return "0"

    def steps(self, steps: Sequence[Step], indent: str) -> None:
        """Append the lines that run ``steps``, indented by ``indent``."""
        for step in steps:
            if isinstance(step, KernelCall):
                self.call(step, indent)
            elif isinstance(step, Loop):
                self.loop(step, indent)
            else:
                self.branch(step, indent)

    def call(self, step: KernelCall, indent: str) -> None:
        """Append the lines, after ``indent``, that call a kernel of the plan."""
        values = ", ".join(map(self.argument, step.arguments)) or "0"
        self.lines += [
            f"{indent}{{",
            f"{indent}  const int64_t arguments[] = {{{values}}};",
            f"{indent}  /* {step.kernel} */",
            f"{indent}  {self.symbols[step.kernel]}(arguments, 0, {step.items});",
            f"{indent}}}",
        ]

    def argument(self, argument: Argument) -> str:
        """Return a kernel's argument, an address or a number, as a C int64_t."""
        if isinstance(argument, BufferArgument):
            return f"(int64_t)(b{argument.buffer} + {argument.offset})"
        if isinstance(argument, ScratchArgument):
            start = _aligned(self.plan.arena) + argument.offset
            return f"(int64_t)(arena + {start})"
        return f"INT64_C({argument})" if argument > -(2**63) else "INT64_MIN"

    def loop(self, loop: Loop, indent: str) -> None:
        """Append a ``for`` loop, indented by ``indent``.

        Before each iteration the buffers of slices advance, and those of carries swap.
        The C variable ``b5`` has the address of buffer 5.
        """
        inner = indent + "  "
        self.lines.append(f"{indent}{{")
        for s in loop.slices:
            self.lines.append(f"{inner}b{s.buffer} = b{s.source} + {s.offset};")
        for c in loop.carries:
            self.lines.append(f"{inner}b{c.current} = b{c.initial};")
            self.lines.append(f"{inner}b{c.next} = b{c.first};")
        goes_on = "1" if loop.count is None else f"k < {loop.count}"
        if loop.predicate is not None:
            goes_on = f"*(const uint8_t *)b{loop.predicate}"
        self.lines.append(f"{inner}for (int64_t k = 0; {goes_on}; ++k) {{")
        self.steps(loop.body, inner + "  ")
        for s in loop.slices:
            self.lines.append(f"{inner}  b{s.buffer} += {s.stride};")
        # After an iteration, the next value is the current one, and ``next`` is the
        # other of the two buffers.
        for c in loop.carries:
            other = f"b{c.next} == b{c.first} ? b{c.second} : b{c.first}"
            self.lines.append(f"{inner}  b{c.current} = b{c.next};")
            self.lines.append(f"{inner}  b{c.next} = {other};")
        self.lines.append(f"{inner}}}")
        for c in loop.carries:
            size = self.plan.buffers[c.result].nbytes
            self.lines.append(
                f"{inner}if (b{c.current} != b{c.result}) "
                f"memcpy(b{c.result}, b{c.current}, {size});"
            )
        self.lines.append(f"{indent}}}")

    def branch(self, branch: Branch, indent: str) -> None:
        """Append a ``switch``, indented by ``indent``.

        The C variable ``b5`` has the address of buffer 5. An index below the first
        branch or above the last takes that one.
        """
        last = len(branch.branches) - 1
        self.lines.append(
            f"{indent}switch (*(const int32_t *)b{branch.index} < 0 ? 0 : "
            f"*(const int32_t *)b{branch.index}) {{"
        )
        for number, block in enumerate(branch.branches):
            case = "default" if number == last else f"case {number}"
            self.lines.append(f"{indent}{case}: {{")
            self.steps(block, indent + "  ")
            self.lines.append(f"{indent}}} break;")
        self.lines.append(f"{indent}}}")

    # The program.

    def program(self) -> str:
        """Return the C file of a program that reads arguments, and writes results.

        It is ``_PROGRAM`` with the words ``@WORD@`` replaced.
        """
        arguments, results = self.compiled.input_types, self.compiled.output_types
        names = [f"IN{k}" for k in range(len(arguments))]
        names += [f"OUT{k}" for k in range(len(results))]
        types = [p.rpartition(" *")[0] for p in self.parameters()]
        words = {
            "NAME": self.name,
            "FILES": " ".join(names),
            "LINE": str(_LINE),
            "INPUT_COUNT": str(len(arguments)),
            "COUNT": str(len(names)),
            "SIZES": ", ".join(str(_nbytes(t)) for t in (*arguments, *results)),
            "PASSED": ", ".join(f"({t} *)held[{k}]" for k, t in enumerate(types)),
        }
        return re.sub("@([A-Z_]+)@", lambda match: words[match[1]], _PROGRAM)


def _shown(type: ArrayType) -> str:
    """Return ``type`` in the header's comment, without the mark of a weak type."""
    return str(type).removeprefix("~")


def _nbytes(type: ArrayType) -> int:
    """Return the bytes from the first element on, to the end of the last."""
    return type.span()[1] * type.dtype.itemsize


def _in_memory_order(array: Any) -> bytes:
    """Return the bytes of a captured array in the order of memory, without gaps."""
    # Axes from the largest stride to the smallest.
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return array.transpose(order).tobytes()
