"""Where a table goes, and what its attributes say to each family of readers."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.target import Target
from cytopave.engine.tables.columns import INSTANCE
from cytopave.engine.tables.layout import REGION, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.merge import Merge
    from cytopave.engine.omezarr.folders import Folder
    from cytopave.engine.omezarr.labels import LabelTarget

# Raise it whenever sums taken by an earlier version must not be used again.
CODE_VERSION = 2


class TableTarget(Target):
    """Where a run's table goes; plain values, made once."""

    shelf = "tables"
    noun = "table"

    def check(self) -> None:
        """Refuse what cannot work; nothing is left behind.

        Raises:
            OutputError: The name is taken or cannot be used, or nothing can be written there.
        """
        publish.check_name(self.name, noun=self.noun)
        shelf = self.store / self.shelf
        if not self.overwrite and publish.is_taken(shelf, self.name, self.digest):
            raise OutputError(
                f"the table {self.name!r} is already in {self.store}: choose another name, or "
                "replace it (--overwrite)"
            )
        publish.check_writable(shelf)

    def empty(self) -> Folder:
        """The hidden folder, with nothing in it.

        Raises:
            OutputError: It cannot be written.
        """
        with self.writing():
            self.staging.remove()
            if ngff.read_attributes(self.store) is None:
                publish.write_group(self.store, zarr_format=self.zarr_format, attributes={})
        return self.staging

    def describe(self, region: str, provenance: Mapping[str, Any]) -> None:
        """Complete the hidden table's attributes.

        Both conventions have a key ``region``: as an attribute it is Fractal's (a path);
        SpatialData's readers take theirs from ``uns["spatialdata_attrs"]``.

        Args:
            region: Path of the label image relative to the table.
            provenance: What made the table: JSON values, kept in the attribute ``cytopave``.
        """
        fractal = {
            "type": "feature_table",
            "fractal_table_version": "1",
            "region": {"path": region},
            "instance_key": INSTANCE,
        }
        ngio = {"table_version": "1", "backend": "anndata", "index_key": INSTANCE}
        spatialdata = {
            "spatialdata-encoding-type": "ngff:regions_table",
            "region_key": REGION,
            "version": "0.1" if self.zarr_format == 2 else "0.2",
        }
        made = {publish.PROVENANCE: {**provenance, "digest": self.digest}}
        attributes = {**ROOT, **fractal, **ngio, "index_type": "int", **spatialdata, **made}
        with self.writing():
            publish.write_group(self.staging, zarr_format=self.zarr_format, attributes=attributes)

    def publish(self) -> None:
        """Make the table visible. May be called again after a kill at any point.

        Raises:
            OutputError: There is nothing to publish, or the name was taken in the meantime.
        """
        with self.writing():
            publish.publish(
                self.store,
                staging=self.staging,
                name=self.name,
                digest=self.digest,
                version="",
                zarr_format=self.zarr_format,
                overwrite=self.overwrite,
                shelf=self.shelf,
            )


def table_digest(**facts: Any) -> str:
    """Digest of all that a table depends on; JSON values."""
    text = json.dumps({"code": CODE_VERSION, **facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def table_of_run(labels: LabelTarget, merge: Merge) -> TableTarget:
    """Where the table of a run's labels goes: into their store, under their name."""
    return TableTarget(
        url=labels.url,
        storage_options=labels.storage_options,
        name=labels.name,
        digest=table_digest(run=labels.digest, merge=merge.model_dump()),
        overwrite=labels.overwrite,
        zarr_format=labels.zarr_format,
    )
