"""Sorts by digits: keys, tiles, passes, and what is made of them."""
