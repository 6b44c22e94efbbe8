"""jit: compiles a function once for each signature of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

from arrayfn.backends.registry import choose
from arrayfn.compilation.compiler import Compiler
from arrayfn.compilation.jitted import Jitted, P, R
from arrayfn.compilation.static_arguments import StaticParameters
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lowering.options import MODES, Options
from arrayfn.passes.faults import kinds_of
from arrayfn.transforms import Function, with_shardings
from arrayfn.transforms.arguments import check_function

Device = str | Sequence[str]


@overload
def jit(
    fun: Callable[P, R],
    *,
    device: Device | None = None,
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Sequence[str] | None = (),
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Sequence[str] | None = (),
    keep_unused: bool = False,
    inline: bool = False,
    deterministic: bool | int = True,
    mode: str | None = None,
    freeze: bool | str | Sequence[str] = False,
    checks: bool | str | Sequence[str] = False,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> Jitted[P, R]: ...


@overload
def jit(
    fun: None = None,
    *,
    device: Device | None = None,
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Sequence[str] | None = (),
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Sequence[str] | None = (),
    keep_unused: bool = False,
    inline: bool = False,
    deterministic: bool | int = True,
    mode: str | None = None,
    freeze: bool | str | Sequence[str] = False,
    checks: bool | str | Sequence[str] = False,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(
    fun: Function | None = None,
    *,
    device: Device | None = None,
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Sequence[str] | None = (),
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Sequence[str] | None = (),
    keep_unused: bool = False,
    inline: bool = False,
    deterministic: bool | int = True,
    mode: str | None = None,
    freeze: bool | str | Sequence[str] = False,
    checks: bool | str | Sequence[str] = False,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> Any:
    """Compile ``fun`` for the types of its arguments, at its first call with them.

    Arguments are pytrees of arrays and numbers. ``device`` names a backend, or several,
    of which the first available one is used. Arrays that are elsewhere are copied
    there. If no backend is available, you can lower the function and read its kernels,
    but a call raises BackendError. Without ``device`` the function runs where its
    arguments are: on the GPU if one of them is an array there, else on the CPU. Static
    arguments are hashable Python values. The function is compiled again for each of
    their values. Donated arguments may be overwritten. ``keep_unused`` and ``inline``
    have no effect: every argument is kept, and if a compiled function calls another
    one, both are compiled together.

    Results have the same bits in each run on one machine. ``deterministic=8`` asks for
    the same bits on meshes of 1, 2, 4 and 8 devices as well. Axes that are cut are then
    computed in 8 blocks, and one tree adds the sums of the blocks. If this is not
    possible, an ArgumentError says why. With ``deterministic=False`` a GPU may add in
    any order, which can be faster. ``mode="persistent"`` fuses successive steps into
    one kernel on a GPU, for work so small that launches dominate. On a CPU, neither
    ``deterministic=False`` nor ``mode`` has an effect.

    ``freeze`` names one or several recipes. Values that depend only on captured arrays
    are then computed when the function is compiled, and the recipes change weights.
    True means ``("scales", "transposes")``. ``jit(f, freeze=True).lower(x).notes``
    lists the changes; see ``Lowered.freeze``.

    ``checks=True`` raises OutOfBoundsError, an IndexError, for an index outside its
    axis. Without the check, such a read gives a fill value, and such a write does
    nothing. Other checks have names, and a tuple names several. ``"nan"`` and ``"inf"``
    raise NotFiniteError where an operation on other numbers gives NaN or an infinity.
    ``"division"`` raises DivisionByZeroError. ``"index"`` is the same as True, and
    ``"all"`` means all of them. The errors name the line that caused them. A checked
    function is slower and waits for its results.

    ``in_shardings`` and ``out_shardings`` say how arguments and results are distributed
    over the devices of a mesh. They have a NamedSharding for each positional argument,
    or a pytree prefix of it. None allows any sharding. All devices of the mesh then
    compute the function on their parts. This also happens if an argument is an array
    over a mesh.

    Raises ArgumentError for an argument that is neither an array nor static, and for
    static arguments that the function does not take. Also raises it for unknown modes
    and checks.

    >>> import numpy as np
    >>> jit(lambda x, y: x * y + 1.0)(np.ones(3), np.full(3, 2.0))
    array([3., 3., 3.])
    >>> jit(lambda x, i: x[i], checks=True)(np.ones(3), 3)
    Traceback (most recent call last):
    ...
    arrayfn.errors.OutOfBoundsError: ... index 3 is out of bounds for axis 0 ...
    """
    if fun is None:
        return functools.partial(
            jit,
            device=device,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            keep_unused=keep_unused,
            inline=inline,
            deterministic=deterministic,
            mode=mode,
            freeze=freeze,
            checks=checks,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
        )
    if mode is not None and mode not in MODES:
        raise ArgumentError(
            f"jit has no mode {mode!r}; the modes are {', '.join(map(repr, MODES))}, "
            "or None for a kernel a step",
            user_location(),
        )
    check_function("jit", fun)
    static = StaticParameters.of(fun, static_argnums, static_argnames)
    donated = StaticParameters.of(fun, donate_argnums, donate_argnames, "donate")
    static.check_apart(donated)
    recipes = None if freeze is False else _recipes(freeze)
    parts = 0 if isinstance(deterministic, bool) else deterministic
    if parts < 0 or parts & (parts - 1):
        raise ArgumentError(
            f"jit: deterministic must be True, False or a power of two, not "
            f"{deterministic}",
            user_location(),
        )
    options = Options(bool(deterministic), mode, parts=parts, freeze=recipes)
    backend = None if device is None else choose(device, to_lower=True)
    check_kinds = kinds_of(checks)
    if in_shardings is not None or out_shardings is not None:
        fun = with_shardings(fun, in_shardings, out_shardings)
    return Jitted(Compiler(fun, backend, static, donated, options, check_kinds))


def _recipes(freeze: bool | str | Sequence[str]) -> tuple[str, ...]:
    """Return the recipes that ``freeze`` names; ArgumentError for unknown ones."""
    from arrayfn.compilation.weight_recipes import LOSSLESS, check_recipes

    if isinstance(freeze, bool):
        return LOSSLESS
    recipes = (freeze,) if isinstance(freeze, str) else tuple(freeze)
    check_recipes(recipes)
    return recipes
