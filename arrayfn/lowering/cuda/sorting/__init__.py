"""Sorts by digits (radix sorts): keys, tiles, passes, and the sort primitives."""
