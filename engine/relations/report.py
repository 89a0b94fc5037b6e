"""What relating two label images gave."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RelateReport(BaseModel):
    """The result of ``relate_labels``; objects are counted in each time point.

    Attributes:
        child_table: URL of the table of the children.
        child_columns: Its new columns: id of the parent, share of the child's pixels within it.
        parent_table: URL of the table of the parents.
        parent_column: Its new column: number of children.
        n_children: Number of children.
        n_without_parent: Of these, such as lie in no parent.
        n_parents: Number of parents.
        n_without_child: Of these, such as have no child.
        related: Whether anything was read; not where the very columns were there.
        files: The exported files of the children's table, by format.
    """

    model_config = ConfigDict(frozen=True)

    child_table: str
    child_columns: tuple[str, str]
    parent_table: str
    parent_column: str
    n_children: int
    n_without_parent: int
    n_parents: int
    n_without_child: int
    related: bool
    files: dict[str, str]
