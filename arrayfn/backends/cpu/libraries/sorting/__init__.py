"""Sorts, orders, the greatest few: NumPy's sorts by address, and loops."""
