"""Side-by-side measurements of arrayfn and JAX: ``python -m benchmarks [CASE ...]``.

In the order of use: ``cases`` (the functions, each written once for all engines),
``engines`` (how each engine compiles, feeds and awaits), ``timing`` (engines take
turns), ``throughput`` (speed of a call), ``worker`` and ``processes`` (what is measured
in a fresh process), ``machine`` (where it ran), ``report`` (tables and JSON).
"""
