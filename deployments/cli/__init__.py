"""The command line: one more way to start a flow, and to look at what it will do and has done.

Nothing heavy is imported before a command needs it: a request that cannot work is refused within
seconds, and worker processes, which import the program that started them, start fast.
"""

from cytopave.deployments.cli.app import main

__all__ = ["main"]
