"""What the commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 2**30


def say(text: str) -> None:
    """One line on stderr."""
    print("cytopave:", " ".join(text.split()), file=sys.stderr, flush=True)


def write_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False), flush=True)


def write(text: str = "") -> None:
    """A line of a result on stdout."""
    print(text, flush=True)


def write_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line, aligned."""
    width = max(map(len, facts))
    for name, value in facts.items():
        write(f"{name:<{width}}  {value}")


def write_table(rows: Sequence[Mapping[str, object]], *, title: str) -> None:
    """A table: drawn on a terminal, plain columns elsewhere. Nothing if there are no rows."""
    if not rows:
        return
    write()
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            table.add_column(name, justify="right" if _numeric(rows, name) else "left")
        for row in rows:
            table.add_row(*(str(v) for v in row.values()))
        Console().print(table)
        return
    write(title)
    widths = {n: max(len(n), *(len(str(r[n])) for r in rows)) for n in rows[0]}
    for cells in ({n: n for n in widths}, *rows):
        aligned = (
            f"{cells[n]!s:>{w}}" if _numeric(rows, n) else f"{cells[n]!s:<{w}}"
            for n, w in widths.items()
        )
        write("  ".join(aligned).rstrip())


def _numeric(rows: Sequence[Mapping[str, object]], name: str) -> bool:
    return all(isinstance(r[name], int | float) or r[name] == "" for r in rows)
