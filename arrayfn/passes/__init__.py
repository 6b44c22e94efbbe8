"""Passes: rewrites of Programs that come before fusion. ``pipeline`` is their order."""
