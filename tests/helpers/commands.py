"""How a command line ended, and the type of what runs one in the tests' process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ended(NamedTuple):
    status: int
    out: str
    err: str


type Command = Callable[..., Ended]
