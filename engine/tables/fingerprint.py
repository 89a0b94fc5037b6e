"""What ties a table to the very labels that it describes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import UserError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.publish import PROVENANCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.omezarr.image import Image


def is_unchanged(labels: Image, fingerprint: str) -> bool:
    """Whether labels are still there, and those that had a fingerprint."""
    try:
        made = (ngff.read_attributes(labels.folder) or {}).get(PROVENANCE)
        return label_fingerprint(labels, made if isinstance(made, dict) else None) == fingerprint
    except (OSError, UserError):
        return False


def label_fingerprint(labels: Image, made: Mapping[str, Any] | None) -> str:
    """SHA-256 of what tells labels from others, without reading their pixels.

    A copy or a renamed label image has the same; one that was made anew by the same run too.

    Args:
        labels: The level that is measured.
        made: What the labels' attributes say of how cytopave made them, where it did.
    """
    kept = {key: made[key] for key in ("digest", "merge") if key in made} if made else {}
    facts = [labels.fingerprint(times=False), kept]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
