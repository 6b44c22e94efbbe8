"""Compiling functions: ``jit``, its stages, operators, and saved functions."""
