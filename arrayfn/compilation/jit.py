"""jit: compiles a function once for each signature of its arguments.

A call looks up the signature of its arguments and runs the executable found. A new
signature is traced and compiled; equal kernels compile once.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload
from weakref import WeakSet

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.backends.base import Backend, DirectExecutable
from arrayfn.backends.registry import choose, get_backend
from arrayfn.caches import forgets
from arrayfn.compilation.building import Built, Key, building, reason_of
from arrayfn.compilation.freezing import frozen
from arrayfn.compilation.open_sizes import Sizes, is_open, open_text
from arrayfn.compilation.own_constants import with_own_constants
from arrayfn.compilation.short_calls import (
    by_trees,
    gives_tuple,
    if_on_device,
    is_flat,
)
from arrayfn.compilation.stages import Lowered, Traced
from arrayfn.compilation.static_arguments import (
    StaticArguments,
    StaticParameters,
)
from arrayfn.compilation.watching import WATCHERS, before_watching
from arrayfn.compilation.weight_recipes import LOSSLESS, check_recipes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType, Equation, Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.operator_kernels import KERNELS, operators_of
from arrayfn.lowering.options import MODES, Options
from arrayfn.passes.checks import kinds_of, with_checks
from arrayfn.passes.faults import Site
from arrayfn.passes.meshes import has_shard_map, mesh_of
from arrayfn.pickling import pickled
from arrayfn.primitives.assertions import has_check
from arrayfn.primitives.calls import operator_call
from arrayfn.tracing import Namespace, apply, device_of, too_deep
from arrayfn.tracing.frames import current_frame
from arrayfn.tracing.references import (
    Ref,
    RefWrittenError,
    held,
    is_of_a_body,
    write_back,
)
from arrayfn.transforms import (
    FlatTrace,
    Function,
    check_leaves,
    inside_trace,
    leaf_type,
    name_of,
    trace_function,
    with_shardings,
)
from arrayfn.transforms.arguments import check_function, hints, known_arguments

Device = str | Sequence[str]


P = ParamSpec("P")
R = TypeVar("R")


class Jitted(Generic[P, R]):
    """A jitted function; call it like the function it wraps.

    >>> import arrayfn as af
    >>> double = af.jit(lambda x: 2.0 * x)
    >>> isinstance(double, af.Jitted), double(3.0)
    (True, array(6.))
    """

    # Kept apart from the function's attributes, which a wrapper copies.
    __slots__ = (
        *("_function", "_backend", "_static", "_donated", "_options", "_checks"),
        *("_cache", "_last", "_last_by_trees", "_checked", "_by_refs"),
        *("__dict__", "__weakref__"),
    )

    def __init__(
        self,
        function: Callable[P, R],
        backend: Backend | None,
        static: StaticParameters,
        donated: StaticParameters,
        options: Options,
        checks: frozenset[str] = frozenset(),
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._backend = backend
        self._static = static
        self._donated = donated
        self._options = options
        self._checks = checks
        self._cache: dict[Key, Entry] = {}
        self._last: Callable[..., Any] | None = None
        self._last_by_trees: Callable[..., Any] | None = None
        self._checked: dict[frozenset[str], Jitted[P, R]] = {}
        self._by_refs: dict[Any, Jitted[..., Any]] = {}
        _all.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function compiled for these arguments' types."""
        last = self._last
        if last is not None and not kwargs:
            result = last(*args)
            if type(result) is not int:
                return result
        by_trees = self._last_by_trees
        if by_trees is not None:
            result = by_trees(args, kwargs)
            if type(result) is not int:
                return result
        return self._call(args, kwargs)

    @property
    def python_function(self) -> Callable[P, R]:
        """The function that was given to ``jit``."""
        return self._function

    def with_checks(self, kinds: frozenset[str]) -> Jitted[P, R]:
        """The same function with more checks, compiled for itself."""
        wanted = self._checks | kinds
        if wanted == self._checks:
            return self
        if wanted not in self._checked:
            options = self._static, self._donated, self._options, wanted
            made = Jitted(self._function, self._backend, *options)
            self._checked[wanted] = made
        return self._checked[wanted]

    def clear_cache(self) -> None:
        """Drop the compiled code; the next call compiles again."""
        self._cache.clear()
        self.forget_last()

    def clear_calls_of(self, operator: str) -> None:
        """Drop the compiled code that calls ``operator``."""
        if any(operator in entry.operators for entry in self._cache.values()):
            self.clear_cache()

    @override
    def __reduce__(self) -> str | tuple[Any, ...]:
        backend = None if self._backend is None else self._backend.name
        options = self._static, self._donated, self._options, self._checks
        return pickled(self, ((self._function, backend, *options), vars(self)))

    def __setstate__(self, state: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        (function, backend, *options), attributes = state
        chosen = None if backend is None else choose(backend, to_lower=True)
        self.__init__(function, chosen, *options)
        vars(self).update(attributes)

    @override
    def __repr__(self) -> str:
        device = "" if self._backend is None else f" for {self._backend.name}"
        count = len(self._cache)
        signatures = (
            f"{count} signature{'' if count == 1 else 's'}" if count else "not yet"
        )
        name = getattr(self._function, "__qualname__", name_of(self._function))
        return f"<jitted {name}{device}, compiled {'for ' * bool(count)}{signatures}>"

    def _repr_html_(self) -> str:
        from arrayfn.compilation.shown import signatures_html

        return signatures_html(repr(self), self.signatures())

    def signatures(self) -> list[tuple[str, Built]]:
        """What the function has been compiled for, and the record of each compilation.

        >>> import numpy as np
        >>> double = jit(lambda x: 2 * x)
        >>> double(np.ones(2)), double(np.ones(3))
        (array([2., 2.]), array([2., 2., 2.]))
        >>> for types, built in double.signatures():
        ...     print(types, built.reason)
        f64[2]
        f64[3] x is f64[3], not f64[2]
        """
        return [
            (", ".join(map(str, key[2])), entry.built)
            for key, entry in self._cache.items()
        ]

    def compiled_signatures(self) -> list[tuple[CompiledProgram, tree.TreeDef]]:
        """What the function has been compiled to, with the results' structures."""
        return [(entry.compiled, entry.out_tree) for entry in self._cache.values()]

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks for when a function that it compiles calls this one."""
        return import_module(Namespace.numba_module).type_of_jitted(self)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: type | None = None
    ) -> Callable[..., R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The bound method, whose first argument is the instance."""
        return self if instance is None else functools.partial(self, instance)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function for these arguments; compile it for a new signature."""
        args, kwargs, static = self._static.split(self._function, args, kwargs)
        args, kwargs, leaves, structure = known_arguments(args, kwargs)
        if any(type(x) is Ref for x in leaves):
            return self._call_with_refs(args, kwargs, static, leaves, structure)
        if inside_trace(leaves):
            return self._inline(args, kwargs, static, leaves)
        check_leaves(self._function, args, kwargs, leaves)
        types = tuple(leaf_type(x) for x in leaves)
        backend = self._backend_of(leaves)
        key = (structure, static, types, backend.name)
        entry = self._cache.get(key)
        if entry is None:
            arguments = static.filled(args)
            reason = reason_of(
                key, self._cache, lambda: hints(self._function, arguments, kwargs)
            )
            with building(name_of(self._function), backend.name, reason) as built:
                try:
                    traced = self._trace(args, kwargs, static, types, backend.name)
                except RefWrittenError as written:
                    if not is_of_a_body(written):
                        raise
                    return static.bound(self._function)(*args, **kwargs)
                if traced.trace.depends_on_frames:
                    return self._applied(traced, leaves)
                try:
                    entry = self._compile(traced, args, kwargs, backend, built)
                except RecursionError as error:
                    if current_frame() is not None:
                        raise
                    raise too_deep(name_of(self._function)) from error
            self._cache[key] = entry
        kept_types = entry.kept_types
        arrays = tuple(x if type(x) in kept_types else np.asarray(x) for x in leaves)
        if WATCHERS:
            return tree.unflatten(entry.out_tree, list(WATCHERS[-1](entry, arrays)))
        self._remember(entry, args, kwargs, leaves, structure)
        return tree.unflatten(entry.out_tree, list(entry.run(arrays)))

    def _remember(
        self,
        entry: Entry,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        structure: tree.TreeDef,
    ) -> None:
        """Keep a shortcut for the next call, if its arguments have these types."""
        run = entry.run
        self.forget_last()
        if self._static or not isinstance(run, DirectExecutable):
            return
        is_plain = entry.single or gives_tuple(entry.out_tree)
        call = run.call_single if entry.single else run.call
        if self._backend is None and entry.is_on_device:
            call = if_on_device(call)
        if is_plain and not kwargs and is_flat(args, leaves):
            self._last = call
        else:
            out_tree = None if is_plain else entry.out_tree
            self._last_by_trees = by_trees(call, structure, out_tree)

    def forget_last(self) -> None:
        """Drop the shortcut: the next call looks its signature up."""
        self._last = self._last_by_trees = None

    def _backend_of(self, values: Sequence[Any]) -> Backend:
        """The backend for ``values``: where they are, if no device was named."""
        return self._backend or get_backend(device_of(values) or "cpu")

    def _trace(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
        types: Sequence[ArrayType] | None = None,
        platform: str = "",
    ) -> FlatTrace:
        """Trace the function for these arguments; None for ``types`` takes theirs."""
        traced = trace_function(
            static.bound(self._function),
            args,
            kwargs,
            types=types,
            abstract=True,
            with_values=False,
            checks=self._checks,
            whole=types is not None,
            platform=platform,
        )
        if traced.trace.asks_platform and self._backend is None:
            # Constants on a device decide where it runs.
            there = device_of(traced.program.constant_values) or platform
            if there != platform:
                return self._trace(args, kwargs, static, types, there)
        return traced

    def _inline(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
        leaves: list[Any],
    ) -> Any:
        """Inside a trace, emit one operator_call whose body is the traced function.

        A function that writes to Refs from outside becomes a part of the trace.
        """
        self._check_around()
        try:
            traced = self._trace(args, kwargs, static)
        except RefWrittenError as written:
            if not is_of_a_body(written):
                raise
            return static.bound(self._function)(*args, **kwargs)
        return self._applied(traced, leaves)

    def _call_with_refs(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
        leaves: list[Any],
        structure: tree.TreeDef,
    ) -> Any:
        """A call with Refs among the arguments, which hold new values afterwards."""
        refs = [x for x in leaves if type(x) is Ref]
        if len(set(map(id, refs))) < len(refs):
            raise ArgumentError(
                f"{name_of(self._function)} is given one Ref twice, and would write to "
                "it under two names; give it once, or copies: new_ref(ref[...])",
                user_location(),
            )
        bound = static.bound(self._function)
        values = [x.get() if type(x) is Ref else x for x in leaves]
        if inside_trace(values):
            return bound(*args, **kwargs)
        places = tuple(k for k, x in enumerate(leaves) if type(x) is Ref)
        key = (static, structure, places)
        if key not in self._by_refs:

            @functools.wraps(self._function)
            def of_values(values: list[Any]) -> Any:
                inner = [Ref(x) if k in places else x for k, x in enumerate(values)]
                given, named = tree.unflatten(structure, inner)
                result = bound(*given, **named)
                return result, held([inner[k] for k in places])

            options = StaticParameters((), ()), StaticParameters((), ())
            self._by_refs[key] = Jitted(
                of_values, self._backend, *options, self._options, self._checks
            )
        result, last = self._by_refs[key](values)
        write_back(refs, last)
        return result

    def _applied(self, traced: FlatTrace, leaves: list[Any]) -> Any:
        """The operator_call of a traced function, in the current frame."""
        operands = [*leaves, *traced.trace.captured]
        results = apply(
            operator_call, *operands, name=name_of(self._function), body=traced.program
        )
        if not isinstance(results, tuple):
            results = (results,)
        return tree.unflatten(traced.out_tree, list(results))

    def _check_around(self) -> None:
        """Raise ArgumentError if only a part of what is compiled asks for checks."""
        frame = current_frame()
        missing = self._checks - (self._checks if frame is None else frame.checks)
        if frame is not None and missing:
            name = name_of(self._function)
            raise ArgumentError(
                f"{name} is to be checked ({', '.join(sorted(missing))}), but is "
                f"called while {frame.name!r} is traced, which is not: a function is "
                "checked as a whole. Ask for the checks where the whole is compiled, "
                f"as in jit(grad({name}), checks=...)",
                user_location(),
            )

    def _check_on_mesh(self, program: Program) -> None:
        """Raise ArgumentError for checks of what each device computes by itself."""
        if has_shard_map(program) and (self._checks or has_check(program)):
            name = name_of(self._function)
            raise ArgumentError(
                f"{name} has a shard_map, which is checked on one device: write "
                f"jit({name}, device='cpu')",
                user_location(),
            )

    def _lower(
        self,
        traced: FlatTrace,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        backend: Backend,
    ) -> Lowered:
        """Lower a traced function for ``backend``, or for the mesh of its arrays."""
        program = with_own_constants(traced.program)
        if device_of(program.constant_values):
            backend = self._backend_of(program.constant_values)
        mesh = mesh_of(program)
        if mesh is not None and (
            self._backend is None or self._backend.name == mesh.platform == "cuda"
        ):
            self._check_on_mesh(program)
            backend = get_backend("mesh")
        donated = frozenset(self._donated_leaves(args, kwargs))
        notes: tuple[str, ...] = ()

        def has_kernel(call: Equation) -> bool:
            return KERNELS.for_call(call, backend.name) is not None

        if self._options.freeze is not None:
            made = frozen(program, self._options.freeze, has_kernel)
            program, notes = made.program, made.notes
        with _collector_paused():
            program, sites = with_checks(
                program,
                self._checks,
                has_kernel,
            )
            compiled_program = backend.lower(program, donated, self._options)
        return Lowered(
            program,
            compiled_program,
            tree.structure((args, kwargs)),
            traced.out_tree,
            backend,
            sites,
            self._options,
            donated,
            notes=notes,
        )

    def _donated_leaves(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[int]:
        """The numbers of donated leaves, of arguments without the static ones."""
        if not self._donated:
            return []
        dynamic = (k for k in count() if k not in self._static.positions)
        dynamic_arguments = zip(dynamic, args, strict=False)
        flagged_arguments = [
            (k in self._donated.positions, x) for k, x in dynamic_arguments
        ]
        flagged_arguments += [
            (k in self._donated.names, kwargs[k]) for k in sorted(kwargs)
        ]
        flags = [
            is_donated for is_donated, x in flagged_arguments for _ in tree.leaves(x)
        ]
        return [number for number, is_donated in enumerate(flags) if is_donated]

    def _compile(
        self,
        traced: FlatTrace,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        backend: Backend,
        built: Built,
    ) -> Entry:
        """Lower and compile a traced function; ``built`` is told how far it is."""
        built.stage = "lowering"
        if self._backend is not None:
            choose(backend.name)  # it may be missing here, and only be lowered for
        lowered = self._lower(traced, args, kwargs, backend)
        built.stage, built.kernels = "compiling", len(lowered.kernels)
        array_types = lowered.backend.array_types()
        return Entry(
            lowered.load(),
            lowered.out_tree,
            lowered.out_tree == tree.structure(0),
            (np.ndarray, float, int, bool, *array_types),
            bool(array_types),
            traced.trace.inlined.union(operators_of(lowered.program)),
            built,
            lowered.compiled_program,
            lowered.backend,
            lowered.sites,
        )

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The Program for these arguments' types (values unused), to be lowered.

        >>> traced = jit(lambda x: x + 1.0).trace(np.ones(3))
        >>> str(traced.program.output_types[0]), traced.lower().plan is not None
        ('f64[3]', True)
        """
        args, kwargs, static = self._static.split(self._function, args, kwargs)
        args, kwargs, leaves, _ = known_arguments(args, kwargs)
        check_leaves(self._function, args, kwargs, leaves)
        types = [leaf_type(x) for x in leaves]
        backend = self._backend_of(leaves)
        traced = self._trace(args, kwargs, static, types, backend.name)
        if traced.trace.depends_on_frames:
            raise ArgumentError(
                f"{name_of(self._function)} uses values or named axes of a function "
                "that is being traced, so it cannot be lowered by itself; call it, or "
                "pass the values as arguments",
                user_location(),
            )
        return Traced(
            traced.program,
            tree.structure((args, kwargs)),
            traced.out_tree,
            lambda: self._lower(traced, args, kwargs, backend),
        )

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The Program, kernels and plan for these arguments' types (values unused).

        A ``ShapeDtypeStruct`` stands for an argument. With open sizes in it (``Dim``)
        the function is traced for several sizes; what is lowered serves all of them
        once it is saved. Raises ArgumentError if its Program has not one form.
        """
        arguments, structure = tree.flatten((args, kwargs))
        if not any(map(is_open, arguments)):
            return self.trace(*args, **kwargs).lower()

        def trace(sizes: Sizes) -> Traced:
            closed = [x.at(sizes) if is_open(x) else x for x in arguments]
            given, named = tree.unflatten(structure, closed)
            return self.trace(*given, **named)

        dynamic, named, _ = self._static.split(self._function, args, kwargs)
        leaves = tree.leaves((dynamic, named))
        backend = (self._backend or get_backend("cpu")).name
        text = open_text(lambda sizes: trace(sizes).program, leaves, backend)
        return replace(trace(text.example).lower(), open_text=text)


_all: WeakSet[Jitted[..., Any]] = WeakSet()


@forgets
def _clear_all() -> None:
    for jitted in list(_all):
        jitted.clear_cache()


@dataclass(frozen=True)
class Entry:
    """A compiled signature of a jitted function: what a call of it runs.

    Attributes:
        run: the executable, a function of flat arrays.
        out_tree: the structure of the results.
        single: whether the result is one array.
        kept_types: the types of arguments that ``run`` takes without conversion.
        is_on_device: whether the backend has arrays of its own.
        operators: the operators that the Program calls.
        built: the record of the compilation.
        compiled: the plan and the kernels.
        backend: what compiled it.
        sites: the sites of its checks.
    """

    run: Callable[..., Any]
    out_tree: tree.TreeDef
    single: bool
    kept_types: tuple[type, ...]
    is_on_device: bool
    operators: frozenset[str]
    built: Built
    compiled: CompiledProgram
    backend: Backend
    sites: tuple[Site, ...]

    @property
    def began(self) -> float:
        """The time at which compilation began, by ``time.perf_counter``."""
        return self.built.begin

    @property
    def seconds(self) -> float:
        """The seconds that compilation took."""
        return self.built.seconds


@before_watching
def _forget_last() -> None:
    for jitted in list(_all):
        jitted.forget_last()


@KERNELS.on_change
def _clear_calls_of(operator: str) -> None:
    """Drop the compiled functions that call ``operator``: its kernels changed."""
    for jitted in list(_all):
        jitted.clear_calls_of(operator)


@contextmanager
def _collector_paused() -> Generator[None]:
    """Pause the garbage collector while the compiler runs.

    Lowering makes many objects and hardly any cycles. The collector would traverse them
    each time their number grows by a quarter, for a third to a half of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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

    Arguments are pytrees of arrays and numbers. ``device`` names a backend, or several
    of which the first available one is used; arrays that are elsewhere are copied
    there. Where none is available the function can be lowered, and its kernels read;
    calling it raises BackendError. Without ``device`` it runs where its arguments are:
    on the GPU if one of them is an array there, else on the CPU. Static arguments are
    hashable Python values; the function is compiled again for each of their values.
    Donated arguments may be overwritten. ``keep_unused`` and ``inline`` have no effect:
    every argument is kept, and calls of one compiled function in another are compiled
    as one.

    Results have the same bits in each run on one machine. ``deterministic=8`` asks for
    the same bits on meshes of 1, 2, 4 and 8 devices as well: axes that are cut are
    computed in 8 parts, and sums of parts are added by one tree. A RuntimeWarning says
    which sums depend on the number of devices all the same. With
    ``deterministic=False`` a GPU may add in any order, which can be faster.
    ``mode="persistent"`` fuses successive steps into one kernel on a GPU, for work so
    small that launches dominate. On a CPU neither changes anything.

    ``freeze`` computes what depends on captured arrays alone when the function is
    compiled, and changes weights by recipes: one name, or several. True means
    ``("scales", "transposes")``. ``jit(f, freeze=True).lower(x).notes`` says what was
    done; see ``Lowered.freeze``.

    ``checks=True`` raises OutOfBoundsError, an IndexError, for an index outside its
    axis. Without it such a read gives a fill value and such a write does nothing. Other
    checks are named, several in a tuple: ``"nan"`` and ``"inf"`` raise NotFiniteError
    where an operation on other numbers gives NaN or an infinity, ``"division"`` raises
    DivisionByZeroError, ``"index"`` is the same as True, and ``"all"`` means all of
    them. The errors name the line. A checked function is slower and waits for its
    results.

    ``in_shardings`` and ``out_shardings`` say how arguments and results lie over the
    devices of a mesh: a NamedSharding for each positional argument, or a pytree prefix
    of it, and None where nothing is asked. The function is then computed on the parts
    by all devices of the mesh, as it is if an argument is an array over a mesh.

    Raises ArgumentError for an argument that is neither an array nor static, for static
    arguments that the function does not take, and for unknown modes and checks.

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
            f"jit has no mode {mode!r}; there is {', '.join(map(repr, MODES))}, or "
            "None for a kernel a step",
            user_location(),
        )
    check_function("jit", fun)
    static = StaticParameters.of(fun, static_argnums, static_argnames)
    donated = StaticParameters.of(fun, donate_argnums, donate_argnames, "donate")
    static.check_apart(donated)
    recipes = (freeze,) if isinstance(freeze, str) else freeze
    if isinstance(recipes, bool):
        recipes = LOSSLESS if recipes else None
    check_recipes(recipes or ())
    chosen = None if recipes is None else tuple(recipes)
    parts = 0 if isinstance(deterministic, bool) else deterministic
    if parts < 0 or parts & (parts - 1):
        raise ArgumentError(
            f"jit: deterministic is True, False or a power of two, not {deterministic}",
            user_location(),
        )
    options = Options(bool(deterministic), mode, parts=parts, freeze=chosen)
    backend = None if device is None else choose(device, to_lower=True)
    check_kinds = kinds_of(checks)
    if in_shardings is not None or out_shardings is not None:
        fun = with_shardings(fun, in_shardings, out_shardings)
    return Jitted(fun, backend, static, donated, options, check_kinds)
