"""The primitives: one file for each family, and ``table`` with all of them."""
