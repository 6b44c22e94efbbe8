"""Other projects' test suites, run on arrayfn: ``python -m tests.conformance -h``."""
