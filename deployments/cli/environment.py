"""What has to be set before Prefect is imported, and where cytopave's own messages go."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, TextIO

from cytopave.engine.errors import UserError
from cytopave.engine.settings import load_settings

if TYPE_CHECKING:
    from pydantic import ValidationError

_DEFAULTS = {
    # The temporary API is no installation of its own to be counted.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # cytopave's messages are in Prefect's UI as well, those of the workers included.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "cytopave",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
_QUIET = {
    # Of this process, its temporary API and its workers; what goes to the API stays the same.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}


def prepare_prefect(*, verbose: bool) -> None:
    """Set what the user has not set; before anything imports Prefect.

    Args:
        verbose: Let Prefect and the workers write to the terminal.

    Raises:
        UserError: A variable of Prefect's has a value that it cannot have.
    """
    for name, value in {**_DEFAULTS, **({} if verbose else _QUIET)}.items():
        os.environ.setdefault(name, value)
    _import_prefect()


def _import_prefect() -> None:
    """Import Prefect, which reads its settings once, and complains of them at length."""
    from pydantic import ValidationError

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), warnings.catch_warnings():
            # Said in a line of ours where it matters.
            warnings.filterwarnings("ignore", message="Failed to create the Prefect home")
            importlib.import_module("prefect.context")
    except ValidationError as error:
        raise UserError(f"Prefect's settings cannot be used: {_problems(error)}") from error
    sys.stderr.write(said.getvalue())


def _problems(error: ValidationError) -> str:
    """What is wrong with which variable; not what follows from it."""
    found = []
    for problem in error.errors():
        if problem["type"] == "default_factory_not_called":
            continue
        given, field = problem["input"], ".".join(str(part) for part in problem["loc"])
        named = [n for n, v in os.environ.items() if n.startswith("PREFECT_") and v == given]
        found.append(f"{named[0] if named else field}={given!r}: {problem['msg']}")
    return "; ".join(found)


def listen(*, verbose: bool) -> None:
    """Write cytopave's messages to stderr, one line each.

    Raises:
        UserError: CYTOPAVE_LOG_LEVEL, or another setting, has a value that it cannot have.
    """
    logger = logging.getLogger("cytopave")
    handler = _Stderr()
    handler.setFormatter(_Line() if not verbose else logging.Formatter(_VERBOSE))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(load_settings().log_level)


_VERBOSE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is stderr at that moment: a progress bar stands in for it meanwhile."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        del value


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = " ".join(record.getMessage().split())
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        return text
