"""The program: its commands, and how each way to end becomes a line and an exit status."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from cytopave.deployments.cli.atlas import atlas
from cytopave.deployments.cli.console import say
from cytopave.deployments.cli.convert import convert
from cytopave.deployments.cli.demo import demo
from cytopave.deployments.cli.environment import listen
from cytopave.deployments.cli.measure import measure
from cytopave.deployments.cli.merge import merge
from cytopave.deployments.cli.plan import plan
from cytopave.deployments.cli.probe import probe
from cytopave.deployments.cli.refine import refine
from cytopave.deployments.cli.relate import relate
from cytopave.deployments.cli.report import report
from cytopave.deployments.cli.segment import segment
from cytopave.deployments.cli.sweep import sweep
from cytopave.engine.errors import CytopaveError, UserError

OK, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def _version() -> str:
    from importlib.metadata import version

    return version("cytopave")


app = App(
    name="cytopave",
    help="Segment images too large for any GPU, tile by tile, into one label image.",
    version=_version,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)
_COMMANDS = (
    *(probe, plan, segment, sweep, measure, merge, refine, relate, atlas, convert, report, demo),
)
for _command in _COMMANDS:
    app.command(_command)


def main() -> None:
    """Run the program and exit.

    The status is 0 when done, 3 when done but for tiles that were left out (``--allow-failed``),
    2 for a user's error, 130 after Ctrl-C and 143 after SIGTERM (both
    end workers and the temporary API in order), and 1 for anything else.
    """
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _interrupt)
    sys.exit(run(sys.argv[1:]))


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems send it at the end of a job's time."""


_received: list[int] = []
"""Signals to end by. Libraries may turn the exception that we raise into one of their own."""


def _terminate(signum: int, frame: object) -> None:
    _received.append(TERMINATED)
    raise _Terminated


def _interrupt(signum: int, frame: object) -> None:
    _received.append(INTERRUPTED)
    raise KeyboardInterrupt


def run(tokens: Sequence[str]) -> int:
    """Run a command line.

    Returns:
        The exit status.
    """
    verbose = "--verbose" in tokens
    # Functions of the folder that the user is in can be named; worker processes take this over.
    # Last, so that a file in it does not stand in for a module that others import.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        listen(verbose=verbose)
        status = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _end(USAGE, error, verbose=False)
    except UserError as error:
        return _end(USAGE, error, verbose=verbose)
    except CytopaveError as error:
        return _end(FAILED, error, verbose=verbose)
    except KeyboardInterrupt as error:
        return _interrupted(TERMINATED if isinstance(error, _Terminated) else INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001  the last one to know
        if _received:
            return _interrupted(_received[-1])
        return _end(FAILED, error, verbose=True)
    return status if isinstance(status, int) else OK


def _interrupted(status: int) -> int:
    say("interrupted: finished tiles are kept, and the same command resumes")
    return status


def _end(status: int, error: Exception, *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error)
    else:
        say(f"error: {error}")
    return status
