"""The primitives: one row each, one file a family, ``table`` of them all."""
