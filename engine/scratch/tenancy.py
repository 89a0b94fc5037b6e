"""Who may use a scratch folder, and who deletes it: runs of the same tiles share one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cytopave.engine.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = ".cytopave"
"""Name of the folder of all scratch folders where none was asked for; deleted when empty."""


@dataclass
class Tenancy:
    """A run's stay in a scratch folder.

    Attributes:
        remove: Whether the folder is deleted in the end; may be changed meanwhile.
    """

    remove: bool


@contextlib.contextmanager
def occupied(root: Path, *, remove: bool) -> Iterator[Tenancy]:
    """Use a scratch folder that other runs may use as well.

    Args:
        root: The folder; created if need be.
        remove: Whether to delete it in the end. It stays if the block raises, and as long as
            another run uses it: the last one to leave deletes it. The operating system ends a
            killed run's claim. File systems without locks cannot tell: a warning says so.

    Yields:
        The stay, in which ``remove`` may be changed.

    Raises:
        OutputError: The folder cannot be created or written to.
    """
    with _usable(root):
        handle, lock = _shared_lock(root)
        root.mkdir(parents=True, exist_ok=True)
    tenancy = Tenancy(remove)
    try:
        yield tenancy
        if tenancy.remove:
            _remove_if_alone(root, handle, lock)
    finally:
        os.close(handle)


def is_occupied(root: Path) -> bool:
    """Whether a run uses a scratch folder."""
    try:
        return not _alone(root, lambda _: None, flags=os.O_RDWR)
    except FileNotFoundError:  # every run makes the lock before anything else
        return False


def remove_unoccupied(root: Path) -> bool:
    """Delete a scratch folder that no run uses; returns whether it is gone."""
    return _alone(root, lambda lock: _remove(root, lock))


def _alone(root: Path, act: Callable[[Path], None], *, flags: int = os.O_RDWR | os.O_CREAT) -> bool:
    """Do something about a scratch folder while no run can use it; returns whether it was done."""
    lock = _lock_of(root)
    handle = os.open(lock, flags, 0o666)
    try:
        if not _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, root) or not _is_at(handle, lock):
            return False
        act(lock)
        return True
    finally:
        os.close(handle)


@contextlib.contextmanager
def claimed(root: Path, labels: object, *, noun: str = "labels") -> Iterator[None]:
    """Be the only run that makes certain labels from the tiles of a scratch folder.

    Args:
        root: The folder, which the caller occupies.
        labels: The place where the labels will be published.
        noun: What messages call them, where they are something else.

    Raises:
        OutputError: Another run is making them, or the folder cannot be written to.
    """
    name = hashlib.sha256(str(labels).encode()).hexdigest()[:16]
    with _usable(root):
        (root / "claims").mkdir(exist_ok=True)
        handle = os.open(root / "claims" / name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, root):
            raise OutputError(
                f"another run is making the {noun} {labels} just now: wait "
                "until it has ended, or choose another name"
            )
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _usable(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the scratch folder {root} cannot be used ({error}): name one that can be written to "
            "(--scratch or CYTOPAVE_SCRATCH)"
        ) from error


def _lock_of(root: Path) -> Path:
    # Beside the folder, so that it can be held while the folder is deleted.
    return root.parent / f".{root.name}.lock"


def _is_at(handle: int, lock: Path) -> bool:
    """Whether an open file is still what its path leads to."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(lock))
    except FileNotFoundError:
        return False


def _shared_lock(root: Path) -> tuple[int, Path]:
    lock = _lock_of(root)
    while True:
        root.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # its last holder deleted the folder meanwhile
        _lock(handle, fcntl.LOCK_SH, root)
        if _is_at(handle, lock):
            return handle, lock
        os.close(handle)  # its last holder deleted it while we waited


def _lock(handle: int, how: int, root: Path) -> bool:
    """Whether the lock is held, or cannot be held by anyone."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s has no locks (%s): start one run on an image at a time", root, error)
    return True


def _remove_if_alone(root: Path, handle: int, lock: Path) -> None:
    if _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, root):
        _remove(root, lock)


def _remove(root: Path, lock: Path) -> None:
    shutil.rmtree(root)
    lock.unlink(missing_ok=True)
    if root.parent.name == DEFAULT_FOLDER:
        with contextlib.suppress(OSError):  # other runs' folders may be there
            root.parent.rmdir()
