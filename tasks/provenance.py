"""What a store's attributes say of what made it, and when."""

from __future__ import annotations

import datetime
import importlib.metadata
from typing import Any


def provenance() -> dict[str, Any]:
    """The version of this package and the time, UTC: JSON values."""
    return {
        "version": importlib.metadata.version("cytopave"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
