"""The names and memory of values in a kernel that is a whole loop, while it is printed.

An array is identified by the Var that it is stored in. Scalars of the loop are local
variables; other values lie in the memory of an argument, or in part of one, as the
slices of a scan do.
"""

from __future__ import annotations

from collections.abc import Mapping

from arrayfn import dtypes
from arrayfn.ir import Var
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.kernel_printer import ScratchRow
from arrayfn.lowering.kernel_text import OWN_NAMES, Body, Integer, unique_name
from arrayfn.lowering.steps import BranchStep, LoopStep, NestStep, walk
from arrayfn.records import frozen


@frozen
class Location:
    """Where a value is stored: in ``array``, from the element ``begin`` on.

    ``begin`` is the text of an index; "" is 0.
    """

    array: Var
    begin: str = ""


class LoopFrame(Body):
    """The printed text of one loop so far, with its parameters and variables.

    A *root* is the Var in whose memory other Vars lie; ``of`` returns it.

    Attributes:
        step: the loop.
        readable: whether it is the text for people, or the neutral key.
        imports: the functions of the scalar vocabulary that the text uses.
        integers: the integer arguments so far, by name.
        scratch: the arrays in scratch memory.
        constants, constant_lines: as in ``KernelText``.
        of: a function that returns the root of a Var.
        pointers: the name of the parameter that points to each array, by root.
        written: the arrays that the kernel writes.
        locations: where an array lies that is not a parameter itself, by root.
        registers: the local variable that holds a scalar, by root.
        own_values: the local variable with a scalar that only one work item stores.
        loaded: the arrays that the body reads.
        used_names: all names in use.
        names_of: the name of each owner (a Var, a value of a nest, a step).
        lanes: the parameter with the number of lanes.
        outside: the arrays that steps before or after the loop use.
        in_memory: the arrays that must lie in memory, not in local variables.
    """

    def __init__(
        self,
        loop: LoopStep,
        storage: Storage,
        names: Mapping[Var, str],
        *,
        readable: bool,
    ) -> None:
        """Begin without text, and find out which arrays must lie in memory.

        ``storage`` says in whose memory a Var lies, ``names`` what to call it.
        """
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
        self.own_values: dict[Var, str] = {}
        self.loaded: set[Var] = set()
        self.used_names: set[str] = set()
        self.names_of: dict[object, str] = {}
        self.lanes = ""
        self.outside = {self.of(var) for var in loop.arrays()}
        self.in_memory: set[Var] = set()
        carried = self.find_in_memory()
        # If one array of a carried value is in memory, all are. Repeat until no set of
        # arrays is partly in memory: the sets overlap.
        while any(
            self.in_memory & roots and not roots <= self.in_memory for roots in carried
        ):
            self.in_memory.update(
                *(roots for roots in carried if self.in_memory & roots)
            )

    def find_in_memory(self) -> list[set[Var]]:
        """Fill in ``in_memory`` and ``loaded`` from the loop's steps.

        An array that is read as another dtype, or in slices, must be in memory. Returns
        the arrays of each carried value: either all of them are in memory, or none.
        """
        carried: list[set[Var]] = []
        for step in walk([self.step]):
            if isinstance(step, NestStep):
                for o in step.nest.operands:
                    array = self.of(o.array)
                    if o.dtype != array.type.dtype:
                        self.in_memory.add(array)
                    if not o.written:
                        self.loaded.add(array)
            elif isinstance(step, LoopStep):
                self.in_memory.update(self.of(s.outer) for s in step.slices)
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

    def name_for(self, owner: object, base: str) -> str:
        """Return the name of ``owner``, which the first call makes from ``base``.

        A number is appended if the name is in use, and an underscore to names that
        kernels use themselves. In the neutral text, which is the kernel's cache key, it
        is ``v0``, ``v1`` and so on instead.
        """
        if owner not in self.names_of:
            name = base if self.readable else f"v{len(self.names_of)}"
            if OWN_NAMES.fullmatch(name):
                name += "_"
            self.names_of[owner] = unique_name(name, self.used_names)
        return self.names_of[owner]

    def variable(self, root: Var, suffix: str = "") -> str:
        """Return the name of the array or scalar that is stored in ``root``.

        ``suffix`` is appended: a Var has several names, such as that of its pointer.
        """
        return self.name_for((root, suffix), self.names.get(root, "value") + suffix)

    def pointer(self, root: Var) -> str:
        """Return the parameter that points to the array ``root``; add it if needed."""
        if root not in self.pointers:
            suffix = "_at" if root in self.outside else "_array"
            self.pointers[root] = self.variable(root, suffix)
        return self.pointers[root]

    # Where values are.

    def location(self, root: Var) -> Location:
        """Return where an array in memory lies: by default in itself."""
        return self.locations.get(root, Location(root))

    def register(self, root: Var) -> str | None:
        """Return the local variable that holds the scalar ``root``.

        The first call makes the variable. Returns None if the scalar is in memory.
        """
        if root in self.registers:
            return self.registers[root]
        if (
            root in self.locations
            or root in self.outside
            or not self.can_be_variable(root)
        ):
            return None
        self.registers[root] = self.variable(root)
        return self.registers[root]

    def can_be_variable(self, root: Var) -> bool:
        """Return whether a local variable can hold the array ``root``.

        It can if the array has one element, is not needed in memory, and is not in half
        precision (a variable would have its compute dtype).
        """
        is_one = root.type.size == 1 and root not in self.in_memory
        return is_one and root.type.dtype not in dtypes.HALF_PRECISION

    def element(self, root: Var, index: str = "") -> str:
        """Return the text of element ``index`` of ``root`` in memory: ``x_at[i0]``."""
        location = self.location(root)
        terms = [t for t in (location.begin, index) if t and t != "0"]
        return f"{self.pointer(location.array)}[{' + '.join(terms) or '0'}]"

    def index_of(self, root: Var) -> str:
        """Return the index of the element that a variable stands for; "" for 0.

        The GPU's printer overrides this: there a variable is a thread's element.
        """
        return ""

    def read(self, root: Var, index: str = "") -> str:
        """Return the text that reads the scalar ``root``, or its element ``index``."""
        variable = self.own_values.get(root) or self.register(root)
        if variable is not None:
            return variable
        text = self.element(root, index)
        if root.type.dtype == dtypes.bool_:
            return f"{self.use('convert_u8_bool')}({text})"
        return text

    def assign(self, root: Var, value: str, index: str = "") -> None:
        """Print the assignment of ``value`` to the scalar ``root``, or to an element.

        ``index`` is the element's index as text, "" for a scalar. A scalar in memory is
        stored under the condition of ``guard``; a bool is stored as a byte.
        """
        variable = self.register(root)
        if variable is not None:
            self.line(f"{variable} = {value}")
            return
        guard = "" if index else self.guard(root)
        if guard:
            value = self.own_value(root, value)
        if root.type.dtype == dtypes.bool_:
            value = f"{self.use('convert_bool_u8')}({value})"
        with self.open_if(guard):
            self.line(f"{self.stored(root, index)} = {value}")

    def own_value(self, root: Var, value: str) -> str:
        """Print the assignment of ``value`` to a variable, and return the variable.

        This is for a scalar ``root`` that only one work item stores, but all items
        read. If the body does not read it, ``value`` is returned.
        """
        if root not in self.loaded:
            return value
        self.own_values[root] = self.variable(root, "_own")
        self.line(f"{self.own_values[root]} = {value}")
        return self.own_values[root]

    def guard(self, array: Var) -> str:
        """Return the condition under which a work item stores ``array``, or "".

        Subclasses override this.
        """
        return ""

    def stored(self, root: Var, index: str = "") -> str:
        """Return the text of an element to store to; note that its array is written."""
        self.written.add(self.location(root).array)
        return self.element(root, index)

    # Text.

    def use(self, name: str) -> str:
        """Return ``name``, and record it as a function that the kernel imports."""
        self.imports.add(name)
        return name

    def integer(self, base: str, value: int) -> str:
        """Add an integer parameter, whose argument is ``value``; return its name."""
        name = self.name_for(object(), base)
        self.integers[name] = Integer(name, value)
        return name

    def extent(self, extent: int) -> str:
        """Return the text of ``extent``: a number, or the parameter for the lanes."""
        is_lanes = self.step.lanes and extent == self.step.lanes
        return self.lanes if is_lanes else str(extent)

    def bounds(self, extent: int) -> str | None:
        """Return the text of the bounds of a loop over an axis of ``extent``.

        For the axis of the lanes, these are the work item's block. The GPU's printer
        returns None if the item has only one lane, so that there is no loop.
        """
        is_lanes = self.step.lanes and extent == self.step.lanes
        return "start, stop" if is_lanes else str(extent)
