"""The text of a kernel that is composed of others: functions, imports, names.

In: kernels, and lines of the composed kernel's own function. Each kernel becomes a
device function, whose first parameter is the index of the block that it stands for:

    @device_function
    def columns_0(block, f_in, g_in, k_out, n2, n1):
        ...

Imports are merged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, field
from typing import Final

from arrayfn.ir import Var
from arrayfn.lowering.cuda.imports import imports
from arrayfn.lowering.kernel_text import OWN_NAMES, WIDTH, Body, unique_name
from arrayfn.lowering.plan import Kernel
from arrayfn.records import record

_IMPORTED: Final = re.compile(
    r"^from arrayfn\.lowering\.[\w.]+ import (?:\(\n.*?\)|[^\n]*)\n",
    re.MULTILINE | re.DOTALL,
)


@record
class ComposedText(Body):
    """Collects the text of a composed kernel: device functions, names, imports.

    Args:
        names: What to call arrays in a readable text.
        readable: Whether to write the text for people. If not, names are neutral
            (``v0``, ``v1``), and the text is the key by which equal kernels are found.
        parts: The device function of each kernel, by the kernel's name.
        functions: The texts of these functions.
        known: The names given so far, by the objects that have them.
        taken: All names in use.
    """

    _: KW_ONLY
    names: Mapping[Var, str]
    readable: bool
    parts: dict[str, str] = field(default_factory=dict[str, str])
    functions: list[str] = field(default_factory=list[str])
    known: dict[object, str] = field(default_factory=dict[object, str])
    taken: set[str] = field(default_factory=set[str])

    def name_for(self, owner: object, base: str) -> str:
        """Return the name of ``owner``; make one at the first call.

        ``owner`` is any hashable object. The name is ``base``, with a number if
        ``base`` is in use; in the neutral text ``v0``, ``v1`` and so on.
        """
        if owner not in self.known:
            name = base if self.readable else f"v{len(self.known)}"
            # Kernels give such names to their own variables.
            if OWN_NAMES.fullmatch(name):
                name += "_"
            self.known[owner] = unique_name(name, self.taken)
        return self.known[owner]

    def hint(self, root: Var) -> str:
        """Return the base of the names of the array ``root`` in a readable text."""
        return self.names.get(root, "value")

    def part(self, kernel: Kernel) -> str:
        """Return the name of the device function for one block of ``kernel``.

        The first call makes the function's text from the kernel's: without imports,
        with the comment above its ``def``, and with ``block`` in place of
        ``block_index()``. The function has a parameter ``block`` for the block's index,
        unless ``kernel`` has one thread.
        """
        if kernel.name not in self.parts:
            name = self.name_for(("part", kernel.name), kernel.name)
            self.parts[kernel.name] = name
            text = kernel.source if self.readable else kernel.key
            text = _IMPORTED.sub("", text)
            head = f"def {kernel.name if self.readable else 'kernel'}("
            begin = text.index(head)
            comment = text[:begin].strip() if self.readable else ""
            first = "" if kernel.threads == 1 else "block, "
            text = text[begin:].rstrip().replace(head, f"def {name}({first}", 1)
            text = text.replace("block_index()", "block")
            # A key ends with a comment that lists types of parameters.
            text = "\n".join(line for line in text.splitlines() if line[:1] != "#")
            text = f"@device_function\n{text}"
            self.functions.append(f"{comment}\n{text}" if comment else text)
        return self.parts[kernel.name]

    def text_of(self, title: str, first_lines: Sequence[str]) -> str:
        """Return the source of the composed kernel: comment, imports, functions.

        Args:
            title: The comment.
            first_lines: The ``def`` of the kernel's function, which goes before
                ``lines``.
        """
        is_cut = self.readable and len(title) > WIDTH
        comment = title[: WIDTH - 3] + "..." if is_cut else title
        functions = [line for part in self.functions for line in ("", "", part)]
        text = "\n".join([*functions, "", "", *first_lines, *self.lines, ""])
        return "\n".join([comment, *imports(text.splitlines()), text])
