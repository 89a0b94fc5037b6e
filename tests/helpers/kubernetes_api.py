"""As much of a Kubernetes API as takes a DaskCluster, shows it, and deletes it."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLUSTERS = re.compile(r"/apis/kubernetes\.dask\.org/v1/namespaces/(\w+)/daskclusters/?([\w-]*)")
_GONE = {"kind": "Status", "status": "Failure", "code": 404}


class Api:
    """What was submitted and deleted, and a kubeconfig by which the API is found."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.submitted: list[dict[str, Any]] = []
        self.there: dict[str, dict[str, Any]] = {}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path.startswith("/version"):
            return 200, {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
        match = _CLUSTERS.match(path)
        if match is None:
            return 404, _GONE
        if method == "POST":
            resource = json.loads(body)
            self.submitted.append(resource)
            self.there[resource["metadata"]["name"]] = resource
            return 201, resource
        if not match[2]:
            return 200, {"kind": "List", "metadata": {}, "items": [*self.there.values()]}
        found = self.there.get(match[2])
        if method == "DELETE":
            self.there.pop(match[2], None)
        return (404, _GONE) if found is None else (200, found)


@contextmanager
def serve(folder: Path) -> Iterator[Api]:
    """The API, at a free port of this host."""
    api = Api(folder / "kubeconfig")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = api.answer(self.command, self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _handle

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = {"cluster": "c", "user": "u", "namespace": "imaging"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            ],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        api.kubeconfig.write_text(json.dumps(config))
        yield api
        server.shutdown()
