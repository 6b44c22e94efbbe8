"""Gathers and scatters: where indices lead, and updates that meet there."""
