"""Backends: what allocates, compiles and runs. One package each."""
