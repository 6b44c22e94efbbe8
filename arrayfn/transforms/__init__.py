"""Transformations of Python functions of pytrees.

Each traces its function into a Program and transforms that. Inside another
transformation the result is inlined, otherwise it runs at once.
"""

from __future__ import annotations

from arrayfn.transforms.arguments import (
    Function,
    check_leaf,
    check_leaves,
    leaf_type,
    name_of,
    shown_name,
)
from arrayfn.transforms.constraints import (
    with_sharding_constraint,
    with_shardings,
)
from arrayfn.transforms.device_mapping import pmap, smap
from arrayfn.transforms.directional import jvp, linear_transpose, linearize, vjp
from arrayfn.transforms.flat_trace import FlatTrace, inside_trace, trace_function
from arrayfn.transforms.gradients import grad, value_and_grad
from arrayfn.transforms.jacobians import hessian, jacfwd, jacobian, jacrev
from arrayfn.transforms.mapping import vmap
from arrayfn.transforms.shape_struct import ShapeDtypeStruct
from arrayfn.transforms.shapes import eval_shape, make_program
from arrayfn.transforms.shard_map import shard_map
from arrayfn.transforms.sizes import Dim
from arrayfn.transforms.taylor import jet

__all__ = [
    "Dim",
    "FlatTrace",
    "Function",
    "ShapeDtypeStruct",
    "check_leaf",
    "check_leaves",
    "eval_shape",
    "grad",
    "hessian",
    "inside_trace",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jet",
    "jvp",
    "leaf_type",
    "linear_transpose",
    "linearize",
    "make_program",
    "name_of",
    "pmap",
    "shard_map",
    "shown_name",
    "smap",
    "trace_function",
    "value_and_grad",
    "vjp",
    "vmap",
    "with_sharding_constraint",
    "with_shardings",
]
