"""Jitted: a function that compiles itself for each signature of its arguments.

A call looks up the signature of its arguments and runs the executable found. A new
signature is traced and compiled; equal kernels compile once. What lowers and loads is
imported by the first one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from inspect import CO_VARKEYWORDS
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)
from weakref import WeakSet

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.backends.base import Backend, DirectExecutable
from arrayfn.backends.registry import choose, get_backend
from arrayfn.caches import forgets
from arrayfn.compilation.building import Built, Key, building, reason_of
from arrayfn.compilation.compiler import Compiler
from arrayfn.compilation.short_calls import (
    device_shortcut,
    gives_tuple,
    is_flat,
    structure_shortcut,
)
from arrayfn.compilation.static_arguments import (
    StaticArguments,
    StaticParameters,
)
from arrayfn.compilation.watching import WATCHERS, before_watching
from arrayfn.errors import ArgumentError, plural, user_location
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.pickling import pickled
from arrayfn.tracing import Namespace, too_deep
from arrayfn.tracing.frames import current_frame
from arrayfn.tracing.meshes import mesh_of_block
from arrayfn.tracing.references import (
    Ref,
    RefWrittenError,
    check_given_once,
    held,
    is_of_a_body,
    write_back,
)
from arrayfn.transforms import FlatTrace, check_leaves, inside_trace, leaf_type
from arrayfn.transforms.arguments import hints, with_own_arrays

if TYPE_CHECKING:
    from arrayfn.compilation.compiling import CompiledSignature
    from arrayfn.compilation.open_sizes import Sizes
    from arrayfn.compilation.stages import Lowered, Traced
    from arrayfn.lowering.compiled import CompiledProgram

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
        *(
            "_compiler",
            "_cache",
            "_asks_mesh",
            "_last",
            "_last_by_trees",
            "_checked",
            "_by_refs",
        ),
        *("__dict__", "__weakref__"),
    )

    def __init__(self, compiler: Compiler) -> None:
        """Begin without compiled code; ``compiler`` has the function and options.

        The object is added to ``_all``, so that its code can be dropped.
        """
        functools.update_wrapper(self, compiler.function)
        self._compiler = compiler
        self._cache: dict[Key, CompiledSignature] = {}  # the signatures so far
        self._asks_mesh = False  # whether a signature asked for the mesh of set_mesh
        # Shortcuts to the last signature's executable. They give an int, and not
        # results, for arguments of other types; the second takes (args, kwargs).
        self._last: Callable[..., Any] | None = None
        self._last_by_trees: Callable[..., Any] | None = None
        # For other kinds of checks, see ``with_checks``.
        self._checked: dict[frozenset[str], Jitted[P, R]] = {}
        # Functions of the values of Refs, see ``_call_with_refs``.
        self._by_refs: dict[Any, Jitted[..., Any]] = {}
        _all.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function compiled for these arguments' types."""
        # Shortcuts return an int if the arguments have other types than last time.
        last = self._last
        if last is not None and not kwargs:
            result = last(*args)
            if type(result) is not int:
                return result
        by_structure = self._last_by_trees
        if by_structure is not None:
            result = by_structure(args, kwargs)
            if type(result) is not int:
                return result
        return self._call(args, kwargs)

    @property
    def python_function(self) -> Callable[P, R]:
        """The function that was given to ``jit``."""
        return self._compiler.function

    def with_checks(self, kinds: frozenset[str]) -> Jitted[P, R]:
        """Return the same function, compiled separately, with the checks ``kinds`` too.

        ``kinds_of`` gives the kinds of ``jit(checks=...)``.
        """
        wanted = self._compiler.checks | kinds
        if wanted == self._compiler.checks:
            return self
        if wanted not in self._checked:
            self._checked[wanted] = Jitted(replace(self._compiler, checks=wanted))
        return self._checked[wanted]

    def clear_cache(self) -> None:
        """Drop the compiled code, and the shortcut of the last call to it.

        The next call compiles again.
        """
        self._cache.clear()
        self.forget_last()

    def clear_calls_of(self, operator: str) -> None:
        """Drop all compiled code if some of it calls the operator of this name."""
        if any(operator in entry.operators for entry in self._cache.values()):
            self.clear_cache()

    @override
    def __reduce__(self) -> str | tuple[Any, ...]:
        compiler = self._compiler
        backend = None if compiler.backend is None else compiler.backend.name
        options = compiler.static, compiler.donated, compiler.options, compiler.checks
        return pickled(self, ((compiler.function, backend, *options), vars(self)))

    def __setstate__(self, state: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        (function, backend, *options), attributes = state
        chosen = None if backend is None else choose(backend, to_lower=True)
        self.__init__(Compiler(function, chosen, *options))
        vars(self).update(attributes)

    @override
    def __repr__(self) -> str:
        backend, function = self._compiler.backend, self._compiler.function
        device = "" if backend is None else f" for {backend.name}"
        count = len(self._cache)
        signatures = plural(count, "signature")
        state = f"compiled for {signatures}" if count else "not compiled yet"
        name = getattr(function, "__qualname__", self._compiler.name)
        return f"<jitted {name}{device}, {state}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows, as HTML."""
        from arrayfn.compilation.shown import signatures_html

        return signatures_html(repr(self), self.signatures())

    def signatures(self) -> list[tuple[str, Built]]:
        """Return the types for which the function was compiled, with a record for each.

        >>> import numpy as np
        >>> import arrayfn as af
        >>> double = af.jit(lambda x: 2 * x)
        >>> double(np.ones(2)), double(np.ones(3))
        (array([2., 2.]), array([2., 2., 2.]))
        >>> for types, built in double.signatures():
        ...     print(types, built.reason)
        f64[2]
        f64[3] x is f64[3], not f64[2]
        """
        return [
            (", ".join(map(str, types)), entry.built)
            for (_, _, types, *_), entry in self._cache.items()
        ]

    def compiled_signatures(self) -> list[tuple[CompiledProgram, tree.TreeDef]]:
        """Return each signature's compiled function and its results' structure."""
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
        """Run the function for arguments that no shortcut takes.

        A new signature is compiled first. Inside a trace, and for a function that uses
        traced values of enclosing functions, one equation is emitted. A function that
        writes to Refs that it captured runs as plain Python.
        """
        compiler = self._compiler
        args, kwargs, static = compiler.static.split(compiler.function, args, kwargs)
        args, kwargs, leaves, structure = with_own_arrays(args, kwargs)
        if any(type(x) is Ref for x in leaves):
            return self._call_with_refs(args, kwargs, static, leaves, structure)
        if inside_trace(leaves):
            return compiler.inline(args, kwargs, static, leaves)
        check_leaves(compiler.function, args, kwargs, leaves)
        types = tuple(leaf_type(x) for x in leaves)
        backend = compiler.backend_of(leaves)
        mesh = mesh_of_block() if self._asks_mesh else None
        in_order = self._structure_in_order(args, kwargs)
        key: Key = (in_order, static, types, backend.name, mesh)
        entry = self._cache.get(key)
        if entry is None:
            try:
                compiled = self._trace_and_compile(key, args, kwargs, backend)
            except RefWrittenError as written:
                if not is_of_a_body(written):
                    raise
                return static.bound(compiler.function)(*args, **kwargs)
            if isinstance(compiled, FlatTrace):
                return compiler.apply(compiled, leaves)
            if compiled.asks_mesh and not self._asks_mesh:
                # From now on, the mesh of set_mesh is a part of each key.
                self._asks_mesh = True
                key = (in_order, static, types, backend.name, mesh_of_block())
            entry = self._cache[key] = compiled
        kept_types = entry.kept_types
        arrays = tuple(x if type(x) in kept_types else np.asarray(x) for x in leaves)
        if WATCHERS:  # a profiler, for example, runs the call
            return tree.unflatten(entry.out_tree, list(WATCHERS[-1](entry, arrays)))
        self._remember(entry, args, kwargs, leaves, structure)
        return tree.unflatten(entry.out_tree, list(entry.run(arrays)))

    def _structure_in_order(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tree.TreeDef:
        """Return the structure of the arguments, which has the order of dicts.

        The function may depend on this order. It cannot see in which order keywords are
        given unless it has a ``**`` parameter, so these are sorted.
        """
        code = getattr(self._compiler.function, "__code__", None)
        if code is not None and not code.co_flags & CO_VARKEYWORDS:
            kwargs = dict(sorted(kwargs.items()))
        return tree.flatten_in_order((args, kwargs))[1]

    def _trace_and_compile(
        self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any], backend: Backend
    ) -> CompiledSignature | FlatTrace:
        """Compile the new signature ``key``; return what its calls run.

        ``args`` and ``kwargs`` are its dynamic arguments. A function that uses traced
        values of enclosing functions is not compiled: its trace is returned.
        """
        from arrayfn.compilation.compiling import compile_traced

        compiler, (_, static, types, *_) = self._compiler, key
        arguments = static.filled(args)
        reason = reason_of(
            key, self._cache, lambda: hints(compiler.function, arguments, kwargs)
        )
        with building(compiler.name, backend.name, reason) as built:
            traced = compiler.trace(args, kwargs, static, types, backend.name)
            if traced.trace.depends_on_frames:
                return traced
            try:
                return compile_traced(compiler, traced, args, kwargs, backend, built)
            except RecursionError as error:
                if current_frame() is not None:
                    raise
                raise too_deep(compiler.name) from error

    def _remember(
        self,
        entry: CompiledSignature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        structure: tree.TreeDef,
    ) -> None:
        """Store a shortcut to ``entry`` for the next call with arguments like these.

        ``leaves`` and ``structure`` are those of ``(args, kwargs)``. Static arguments
        and the mesh of ``set_mesh`` are not compared by shortcuts, so that a function
        that depends on them has none.
        """
        run = entry.run
        self.forget_last()
        asks = self._compiler.static or entry.asks_mesh
        if asks or not isinstance(run, DirectExecutable):
            return
        is_plain = entry.single or gives_tuple(entry.out_tree)
        call = run.call_single if entry.single else run.call
        if self._compiler.backend is None and entry.is_on_device:
            call = device_shortcut(call)
        if is_plain and not kwargs and is_flat(args, leaves):
            self._last = call
        else:
            out_tree = None if is_plain else entry.out_tree
            _, in_order = tree.flatten_in_order((args, kwargs))
            positions = tree.sorted_positions(structure, in_order)
            if positions is not None:
                self._last_by_trees = structure_shortcut(
                    call, in_order, positions, out_tree
                )

    def forget_last(self) -> None:
        """Drop the shortcut, so that the next call looks up its signature."""
        self._last = self._last_by_trees = None

    def _call_with_refs(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
        leaves: list[Any],
        structure: tree.TreeDef,
    ) -> Any:
        """Run the function for arguments with Refs, whose values it replaces.

        What is compiled takes the values of the Refs, and returns their last values
        besides the results. ``leaves`` and ``structure`` are those of ``(args,
        kwargs)``, which have no static arguments; ``static`` holds those.
        """
        # Compile a function of the values, once for each structure and places of Refs.
        refs = [x for x in leaves if type(x) is Ref]
        check_given_once(self._compiler.name, refs)
        bound = static.bound(self._compiler.function)
        values = [x.get() if type(x) is Ref else x for x in leaves]
        if inside_trace(values):
            return bound(*args, **kwargs)
        numbers = tuple(k for k, x in enumerate(leaves) if type(x) is Ref)
        key = (static, self._structure_in_order(args, kwargs), numbers)
        if key not in self._by_refs:

            @functools.wraps(self._compiler.function)
            def of_values(values: list[Any]) -> Any:
                """Return the function's result, and the last values of the Refs."""
                inner = [Ref(x) if k in numbers else x for k, x in enumerate(values)]
                positional, named = tree.unflatten(structure, inner)
                result = bound(*positional, **named)
                return result, held([inner[k] for k in numbers])

            self._by_refs[key] = Jitted(
                replace(self._compiler, function=of_values, static=_NONE, donated=_NONE)
            )
        result, last = self._by_refs[key](values)
        write_back(refs, last)
        return result

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Return the Program for the types of these arguments, ready to be lowered.

        The values of the arguments are not used.

        >>> import numpy as np
        >>> import arrayfn as af
        >>> traced = af.jit(lambda x: x + 1.0).trace(np.ones(3))
        >>> str(traced.program.output_types[0]), traced.lower().plan is not None
        ('f64[3]', True)
        """
        from arrayfn.compilation.compiling import lower
        from arrayfn.compilation.stages import Traced

        compiler = self._compiler
        args, kwargs, static = compiler.static.split(compiler.function, args, kwargs)
        args, kwargs, leaves, _ = with_own_arrays(args, kwargs)
        check_leaves(compiler.function, args, kwargs, leaves)
        types = [leaf_type(x) for x in leaves]
        backend = compiler.backend_of(leaves)
        traced = compiler.trace(args, kwargs, static, types, backend.name)
        if traced.trace.depends_on_frames:
            raise ArgumentError(
                f"{compiler.name} uses values or named axes of a function "
                "that is being traced, so it cannot be lowered by itself; call it, or "
                "pass the values as arguments",
                user_location(),
            )
        return Traced(
            traced.program,
            tree.structure((args, kwargs)),
            traced.out_tree,
            lambda: lower(compiler, traced, args, kwargs, backend),
        )

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes and data types of the results: ``arrayfn.eval_shape``.

        >>> import numpy as np
        >>> import arrayfn as af
        >>> af.jit(lambda x: x @ x.T).eval_shape(np.ones((2, 3)))
        ShapeDtypeStruct(shape=(2, 2), dtype=float64)
        """
        return self.trace(*args, **kwargs).out_info

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Return the Program, kernels and plan for the types of these arguments.

        The values of the arguments are not used. A ``ShapeDtypeStruct`` may stand for
        an argument. If a ``ShapeDtypeStruct`` has open sizes (``Dim``), the function is
        traced at several sizes, and the lowered function can be saved for all sizes.
        Raises ArgumentError if the Program has different structures at different sizes.
        """
        from arrayfn.compilation.open_sizes import is_open, open_text

        arguments, structure = tree.flatten((args, kwargs))
        if not any(map(is_open, arguments)):
            return self.trace(*args, **kwargs).lower()

        def trace(sizes: Sizes) -> Traced:
            """Return the Program for one choice of the open sizes."""
            closed = [x.at(sizes) if is_open(x) else x for x in arguments]
            positional, named = tree.unflatten(structure, closed)
            return self.trace(*positional, **named)

        compiler = self._compiler
        dynamic, named, _ = compiler.static.split(compiler.function, args, kwargs)
        leaves = tree.leaves((dynamic, named))
        backend = (compiler.backend or get_backend("cpu")).name
        text = open_text(lambda sizes: trace(sizes).program, leaves, backend)
        return replace(trace(text.example).lower(), open_text=text)


_NONE: Final = StaticParameters((), ())
_all: WeakSet[Jitted[..., Any]] = WeakSet()
"""All jitted functions, whose compiled code can be dropped."""


@forgets
def _clear_all() -> None:
    """Drop the compiled code of all jitted functions."""
    for jitted in list(_all):
        jitted.clear_cache()


@before_watching
def _forget_last() -> None:
    """Drop the shortcuts of all jitted functions, whose calls cannot be watched."""
    for jitted in list(_all):
        jitted.forget_last()


@KERNELS.on_change
def _clear_calls_of(operator: str) -> None:
    """Drop the compiled functions that call ``operator``: its kernels changed."""
    for jitted in list(_all):
        jitted.clear_calls_of(operator)
