"""A generator of programs, the devices it runs them on, and what judges the results.

``python -m tests.fuzz --help`` says how to use it; ``docs/reliability.md`` what for.
"""
