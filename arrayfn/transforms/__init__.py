"""Transformations of Programs: each takes a Program and gives a Program."""
