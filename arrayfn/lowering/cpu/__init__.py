"""Lowering for CPUs: the dispatch strategy and the codegen target."""
