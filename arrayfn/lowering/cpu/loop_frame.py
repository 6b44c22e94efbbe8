"""The names and locations of values in a kernel that is a loop, while it is printed.

Arrays are known by the Var that they are stored in. Scalars of the loop are variables;
all else lies in memory: an argument's, or part of one, as a slice of what is scanned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arrayfn import dtypes
from arrayfn.ir import Var
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.kernel_printer import ScratchRow
from arrayfn.lowering.kernel_text import OWN_NAMES, Body, Integer
from arrayfn.lowering.steps import BranchStep, LoopStep, NestStep, walk


@dataclass(frozen=True)
class Location:
    """The memory of a value: ``array`` from element ``begin`` on."""

    array: Var
    begin: str = ""


class LoopFrame(Body):
    """The text of one loop so far, and its arguments and variables."""

    def __init__(
        self,
        loop: LoopStep,
        storage: Storage,
        names: Mapping[Var, str],
        *,
        readable: bool,
    ) -> None:
        super().__init__()
        self.step = loop
        self.of = storage.of
        self.names = names
        self.readable = readable
        self.imports: set[str] = set()
        self.integers: dict[str, Integer] = {}
        self.scratch: list[ScratchRow] = []
        self.constants: dict[int, str] = {}
        self.constant_lines: list[str] = []
        self.pointers: dict[Var, str] = {}
        self.written: set[Var] = set()
        self.locations: dict[Var, Location] = {}
        self.registers: dict[Var, str] = {}
        # Scalars that one item stores for all, by the variable that each item has.
        self.own_values: dict[Var, str] = {}
        self.loaded: set[Var] = set()  # arrays that the body reads
        self.taken: set[str] = set()
        self.known: dict[object, str] = {}
        self.lanes = ""  # the parameter with their number
        self.outside = {self.of(var) for var in loop.arrays()}
        self.raw: set[Var] = set()
        carried = self.find_raw()
        while any(self.raw & roots and not roots <= self.raw for roots in carried):
            self.raw.update(*(roots for roots in carried if self.raw & roots))

    def find_raw(self) -> list[set[Var]]:
        """Note the arrays that lie in memory, and those that steps read.

        An array that is used as another dtype, or by slices, lies in memory. Returned
        are the arrays of each carried value: all of them lie in memory, or none.
        """
        carried: list[set[Var]] = []
        for step in walk([self.step]):
            if isinstance(step, NestStep):
                for o in step.nest.operands:
                    array = self.of(o.array)
                    if o.dtype != array.type.dtype:
                        self.raw.add(array)
                    if not o.written:
                        self.loaded.add(array)
            elif isinstance(step, LoopStep):
                self.raw.update(self.of(s.outer) for s in step.slices)
                self.loaded.update(self.of(c.initial) for c in step.carries)
                self.loaded.update(self.of(c.next) for c in step.carries)
                if step.predicate is not None:
                    self.loaded.add(self.of(step.predicate))
                carried += [
                    {self.of(c.current), self.of(c.next), self.of(c.result)}
                    for c in step.carries
                ]
            elif isinstance(step, BranchStep):
                self.loaded.add(self.of(step.index))
        return carried

    # Names.

    def unique(self, base: str) -> str:
        """``base``, with a number appended if it is taken."""
        if OWN_NAMES.fullmatch(base):
            base += "_"
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def name_for(self, owner: object, base: str) -> str:
        """The name of ``owner``: neutral ones are numbered."""
        if owner not in self.known:
            neutral = f"v{len(self.known)}"
            self.known[owner] = self.unique(base if self.readable else neutral)
        return self.known[owner]

    def variable(self, root: Var, suffix: str = "") -> str:
        """The name of an array or a scalar."""
        return self.name_for((root, suffix), self.names.get(root, "value") + suffix)

    def pointer(self, root: Var) -> str:
        """The parameter that points to an array."""
        if root not in self.pointers:
            suffix = "_at" if root in self.outside else "_array"
            self.pointers[root] = self.variable(root, suffix)
        return self.pointers[root]

    # Where values are.

    def location(self, root: Var) -> Location:
        """The memory of an array that is no variable."""
        return self.locations.get(root, Location(root))

    def register(self, root: Var) -> str | None:
        """The variable that holds a scalar; None if it lies in memory."""
        if root in self.registers:
            return self.registers[root]
        if root in self.locations or root in self.outside or not self.fits(root):
            return None
        self.registers[root] = self.variable(root)
        return self.registers[root]

    def fits(self, root: Var) -> bool:
        """Whether a variable can hold the array: one element, used as its dtype."""
        is_one = root.type.size == 1 and root not in self.raw
        return is_one and root.type.dtype not in dtypes.HALF_PRECISION

    def element(self, root: Var, index: str = "") -> str:
        """The text of an element in memory."""
        location = self.location(root)
        terms = [t for t in (location.begin, index) if t and t != "0"]
        return f"{self.pointer(location.array)}[{' + '.join(terms) or '0'}]"

    def index_of(self, root: Var) -> str:
        """The index of the element in memory that a variable stands for."""
        return ""

    def read(self, root: Var, index: str = "") -> str:
        """The value of a scalar, or of the element at ``index``."""
        variable = self.own_values.get(root) or self.register(root)
        if variable is not None:
            return variable
        text = self.element(root, index)
        if root.type.dtype == dtypes.bool_:
            return f"{self.use('convert_u8_bool')}({text})"
        return text

    def assign(self, root: Var, value: str, index: str = "") -> None:
        """Set a scalar, or the element at ``index``."""
        variable = self.register(root)
        if variable is not None:
            self.line(f"{variable} = {value}")
            return
        guard = "" if index else self.guard(root)
        if guard:
            value = self.own_value(root, value)
        if root.type.dtype == dtypes.bool_:
            value = f"{self.use('convert_bool_u8')}({value})"
        if guard:
            self.open(f"if {guard}:")
        self.line(f"{self.stored(root, index)} = {value}")
        if guard:
            self.close()

    def own_value(self, root: Var, value: str) -> str:
        """``value``, which one item stores, in a variable if ``root`` is read later."""
        if root not in self.loaded:
            return value
        self.own_values[root] = self.variable(root, "_own")
        self.line(f"{self.own_values[root]} = {value}")
        return self.own_values[root]

    def guard(self, array: Var) -> str:
        """The condition under which an item stores ``array``; "" without one."""
        return ""

    def stored(self, root: Var, index: str = "") -> str:
        """The text of an element to be written."""
        self.written.add(self.location(root).array)
        return self.element(root, index)

    # Text.

    def use(self, name: str) -> str:
        self.imports.add(name)
        return name

    def integer(self, base: str, value: int) -> str:
        """An integer argument of its own."""
        name = self.name_for(object(), base)
        self.integers[name] = Integer(name, value)
        return name

    def extent(self, extent: int) -> str:
        """A number, or the name of that of the lanes."""
        is_lanes = self.step.lanes and extent == self.step.lanes
        return self.lanes if is_lanes else str(extent)

    def bounds(self, extent: int) -> str | None:
        """What the loop over an axis runs over: of the lanes, this item's block.

        None if there is no loop: the item has one of the lanes.
        """
        is_lanes = self.step.lanes and extent == self.step.lanes
        return "start, stop" if is_lanes else str(extent)
