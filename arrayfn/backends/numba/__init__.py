"""Shared by the targets that Numba compiles for.

``scalars`` registers the scalar vocabulary with a Numba target. ``functions`` makes a
Python function of a kernel's text, ``typed`` gives its variables types, and
``lowering`` emits it. Numba and numba-cuda have classes of their own for types and IR:
a target says which by a ``Dialect``, and nothing here imports either.
"""
