"""Lowering for CPUs: schedules, and the printers of kernels."""
