"""The command `spotless`."""

from spotlessnet.cli.entry import main

__all__ = ["main"]
