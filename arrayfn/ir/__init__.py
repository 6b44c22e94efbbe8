"""The IR: Programs, their types and layouts, their text form, and the builder.

A Program is a typed, immutable list of Equations over Vars and Literals. Every
transformation maps a Program to a Program.
"""

from __future__ import annotations

from arrayfn.ir.program import (
    NO_PARAMS,
    Atom,
    Equation,
    Literal,
    Params,
    PrimitiveRow,
    Program,
    Var,
    entry_of,
    programs_in,
    walk,
    with_programs,
)
from arrayfn.ir.sharding import Mesh, NamedSharding, PartitionSpec
from arrayfn.ir.types import (
    ArrayType,
    as_readable,
    joined_variance,
    type_of,
    why_not_an_array,
)

__all__ = [
    "NO_PARAMS",
    "ArrayType",
    "Atom",
    "Equation",
    "Literal",
    "Mesh",
    "NamedSharding",
    "Params",
    "PartitionSpec",
    "PrimitiveRow",
    "Program",
    "Var",
    "as_readable",
    "entry_of",
    "joined_variance",
    "programs_in",
    "type_of",
    "walk",
    "why_not_an_array",
    "with_programs",
]
