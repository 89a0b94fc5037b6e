"""Whether the API that flows of this process would use can be used: asked before anything starts.

Without this, Prefect tries for a minute or two, and ends in the traceback of a connection.
"""

from __future__ import annotations

import os

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings

from cytopave.engine.errors import UserError


def check_api(url: str) -> None:
    """Refuse an address at which no Prefect API answers.

    Args:
        url: ``PREFECT_API_URL``.

    Raises:
        UserError: None answers there, or it does not let us in.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(
            f"PREFECT_API_URL={url} is no address: write http://HOST:4200/api, or unset it for a "
            "temporary API"
        )
    try:
        with get_client(sync_client=True) as client:
            answer = client.request("GET", "/health")
    except PrefectHTTPStatusError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UserError(
                f"the Prefect API at {url} lets nobody in without PREFECT_API_AUTH_STRING (or "
                f"PREFECT_API_KEY), and the one that is set does not fit (status {status})"
            ) from error
        raise UserError(
            f"the Prefect API at {url} answers with status {status}: correct PREFECT_API_URL, "
            "which ends with /api, or look at the server's log"
        ) from error
    except (httpx.HTTPError, RuntimeError) as error:
        raise UserError(
            f"no Prefect API answers at {url}: start it (prefect server start), correct "
            "PREFECT_API_URL, or unset it for a temporary API"
        ) from error
    if answer.headers.get("content-type", "").startswith("text/html"):
        raise UserError(
            f"PREFECT_API_URL={url} is a page for people: the API's address ends with /api"
        )


def check_home() -> None:
    """Refuse a folder in which Prefect's temporary API could not keep its database.

    Raises:
        UserError: It cannot be written.
    """
    home = get_current_settings().home
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not os.access(home, os.W_OK):
            raise PermissionError(f"Permission denied: {home}")
    except OSError as error:
        raise UserError(
            f"Prefect's folder {home} cannot be written ({error.strerror or error}): set "
            "PREFECT_HOME to one that can, or PREFECT_API_URL to a server"
        ) from error
