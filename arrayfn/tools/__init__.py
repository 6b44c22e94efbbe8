"""The command line and its commands. ``demo`` needs the extra ``demo``."""
