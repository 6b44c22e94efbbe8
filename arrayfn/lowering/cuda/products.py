"""Matrix products on a GPU: which dtypes its library has, and what it does after them.

An elementwise kernel that only adds a bias to a product, and perhaps takes the greater
of it and 0, is folded into the product: it becomes the library's epilogue, and the
product itself is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Equation, Var
from arrayfn.lowering.cuda.destinations import Producer, Product
from arrayfn.lowering.kernel_ir import Compute, Constant, Load, Nest, Scalar, Store
from arrayfn.lowering.libraries.calls import LibraryCall, Place
from arrayfn.lowering.steps import NestStep, PlanStep
from arrayfn.passes.expand import BLAS, Products

PRODUCTS: Final[Products] = BLAS | {
    (dtypes.float16, dtypes.float16),
    (dtypes.float16, dtypes.float32),
    (dtypes.bfloat16, dtypes.bfloat16),
    (dtypes.bfloat16, dtypes.float32),
}
"""What cuBLASLt multiplies; halves are summed in float32."""

_BIASED: Final = frozenset(
    (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
)


def provider_of(equation: Equation) -> str:
    """The name of the library's product for ``equation``."""
    operand = equation.inputs[0].type.dtype
    result = equation.outputs[0].type.dtype
    name = f"gemm_{short_name(operand)}"
    if result != operand:
        name += f"_{short_name(result)}"
    if equation.params.get("precision") == "tf32" and operand == dtypes.float32:
        name += "_tf32"
    return name


@dataclass(frozen=True)
class _Epilogue:
    """What follows a product: into ``output``, after ``bias`` and ``relu``."""

    output: Var
    bias: Place | None
    relu: bool


def fold_epilogues(
    steps: Sequence[PlanStep],
    producers: Mapping[int, Producer],
    outputs: Iterable[Var],
    of: Callable[[Var], Var],
) -> tuple[list[PlanStep], dict[int, Producer]]:
    """``steps`` without what can be a part of a product; the products that changed.

    ``producers`` are at the positions of ``steps``, and so are the changed ones.
    Arrays in ``outputs`` are needed after the steps. ``of`` says where an array is
    stored.
    """
    uses: dict[Var, int] = {}
    for step in steps:
        for var in step.arrays():
            uses[var] = uses.get(var, 0) + 1
    needed = set(outputs)
    changed: dict[int, LibraryCall] = {}
    folded: set[int] = set()
    for position, producer in producers.items():
        if not isinstance(producer, Product):
            continue
        call = producer.made
        product = call.writes["c"].array
        # It is written once, and read once.
        if product in needed or uses[product] != 2:
            continue
        reader = next(
            k for k in range(position + 1, len(steps)) if product in steps[k].arrays()
        )
        step = steps[reader]
        if not isinstance(step, NestStep) or step.partials:
            continue
        found = _epilogue(step.nest, product, call)
        between = steps[position + 1 : reader]
        if found is None or _overwritten(between, call, of):
            continue
        changed[reader] = _with_epilogue(call, found)
        folded.add(position)
    kept = [k for k in range(len(steps)) if k not in folded]
    places = {old: new for new, old in enumerate(kept)}
    return [steps[k] for k in kept], {
        places[k]: Product(call) for k, call in changed.items()
    }


def _overwritten(
    steps: Sequence[PlanStep], call: LibraryCall, of: Callable[[Var], Var]
) -> bool:
    """Whether ``steps``, behind which the product moves, write where it reads."""
    read = {of(place.array) for place in call.reads.values()}
    return any(of(var) in read for step in steps for var in step.writes)


def _with_epilogue(call: LibraryCall, epilogue: _Epilogue) -> LibraryCall:
    words = ["bias"] * (epilogue.bias is not None) + ["relu"] * epilogue.relu
    reads = dict(call.reads)
    if epilogue.bias is not None:
        reads["bias"] = epilogue.bias
    return replace(
        call,
        provider="_".join([call.provider, *words]),
        reads=reads,
        writes={"c": Place(epilogue.output)},
    )


def _epilogue(nest: Nest, product: Var, call: LibraryCall) -> _Epilogue | None:
    """What ``nest`` does with ``product``, if that is an epilogue and nothing else."""
    dtype = product.type.dtype
    if any(axis.reduced for axis in nest.axes) or dtype not in _BIASED:
        return None
    reader = _Reader(nest, product, call)
    for statement in nest.statements:
        if not reader.accepts(statement):
            return None
    return reader.result()


class _Reader:
    """Follows the statements of a nest from the product to what is stored."""

    def __init__(self, nest: Nest, product: Var, call: LibraryCall) -> None:
        self.nest = nest
        self.product = product
        self.call = call
        self.suffix = short_name(dtypes.compute_dtype(product.type.dtype))
        self.value = ""  # the name of what the product has become
        self.biases: dict[str, Place] = {}
        self.bias: Place | None = None
        self.relu = False
        self.output: Var | None = None

    def accepts(self, s: object) -> bool:
        """Whether ``s`` is a part of an epilogue, as far as it has come."""
        if self.output is not None:
            return False
        if isinstance(s, Load):
            return self.load(s)
        if isinstance(s, Compute):
            return self.compute(s)
        return isinstance(s, Store) and self.store(s)

    def result(self) -> _Epilogue | None:
        """The epilogue; None if nothing is done after the product."""
        if self.output is None or not (self.bias or self.relu):
            return None
        return _Epilogue(self.output, self.bias, self.relu)

    def load(self, s: Load) -> bool:
        operand = self.nest.operands[s.operand]
        if s.at or s.level != "element":
            return False
        if operand.array is self.product:
            self.value = s.result.name
            return not operand.offset and self.is_whole(operand.strides)
        if operand.dtype != self.product.type.dtype or not self.is_row(operand.strides):
            return False
        self.biases[s.result.name] = Place(operand.array, operand.offset)
        return True

    def extents(self) -> list[int]:
        return [axis.extent for axis in self.nest.axes]

    def is_whole(self, strides: Sequence[int]) -> bool:
        """Whether an operand lies row-major along all axes."""
        step = 1
        for extent, stride in zip(self.extents()[::-1], strides[::-1], strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return step == self.product.type.size

    def is_row(self, strides: Sequence[int]) -> bool:
        """Whether an operand is one row, the same for all rows of the product."""
        n = self.call.integers["n"]
        return (
            self.call.integers["batch"] == 1
            and bool(strides)
            and self.extents()[-1] == n
            and strides[-1] == 1
            and not any(strides[:-1])
        )

    def compute(self, s: Compute) -> bool:
        names = [_name(a) for a in s.arguments]
        if self.value not in names:
            return False
        other = s.arguments[1 - names.index(self.value)] if len(names) == 2 else None
        narrow = short_name(self.product.type.dtype)
        if s.function == f"round_{self.suffix}_{narrow}":
            pass  # the library rounds once, at the end
        elif s.function == f"add_{self.suffix}" and not (self.bias or self.relu):
            self.bias = self.biases.get(_name(other))
            if self.bias is None:
                return False
        elif s.function == f"max_{self.suffix}" and not self.relu:
            if not isinstance(other, Constant) or other.value != 0:
                return False
            self.relu = True
        else:
            return False
        self.value = s.result.name
        return True

    def store(self, s: Store) -> bool:
        operand = self.nest.operands[s.operand]
        if s.at or s.where is not None or _name(s.value) != self.value:
            return False
        self.output = operand.array
        return (
            operand.dtype == self.product.type.dtype
            and not operand.offset
            and operand.array is not self.product
            and self.is_whole(operand.strides)
        )


def _name(scalar: Scalar | None) -> str:
    return str(getattr(scalar, "name", ""))
