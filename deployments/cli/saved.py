"""What options name that somebody saved in Prefect; nothing is imported where they name nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.engine.omezarr import stores
from cytopave.engine.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


def look_up_stores(*, verbose: bool) -> None:
    """Have ``store://name/...`` looked up when one is met.

    Args:
        verbose: Let Prefect write to the terminal.
    """

    def opener(name: str) -> tuple[str, Mapping[str, Any]]:
        prepare_prefect(verbose=verbose)
        from cytopave.blocks.images import open_store

        await_api(name)
        return open_store(name)

    stores.register(opener)


def resolve_saved(image: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The image and the parameters of ``make_plan``, with what blocks say in their place.

    Raises:
        UserError: Something is named that nobody saved.
    """
    model = getattr(parameters["segmenter"], "model", "")
    urls = (image, parameters["output"] or "")
    if "://" not in model and not any(url.startswith(stores.SCHEME) for url in urls):
        return image, parameters
    from cytopave.blocks.images import local_path
    from cytopave.blocks.models import SCHEME, with_saved_model

    if model.startswith(SCHEME):
        await_api(model.removeprefix(SCHEME))
    segmenter, channels = with_saved_model(parameters["segmenter"], parameters["channels"])
    changed = {
        "segmenter": segmenter,
        "channels": channels,
        "output": local_path(parameters["output"]),
    }
    return local_path(image) or image, {**parameters, **changed}


def check_results() -> None:
    """Refuse a place for the results of batches that does not exist.

    Raises:
        UserError: ``CYTOPAVE_RESULTS`` names it.
    """
    results = load_settings().results
    if results is None:
        return
    from cytopave.blocks import results as kept

    if isinstance(storage := kept.result_storage(results), str):
        await_api(storage.partition("/")[2])
    kept.check_results(results)


def await_api(name: str) -> None:
    """Have the API there that will be asked for a block, if it may have one of that name.

    Prefect would start a temporary one by itself, and give up sooner than a busy machine takes.
    """
    from cytopave.blocks.saved import may_be_saved

    if may_be_saved(name):
        from cytopave.tasks.runner import embedded_api

        embedded_api()
