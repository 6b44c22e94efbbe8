"""The command line and what it runs. Needs the extra ``demo``."""
