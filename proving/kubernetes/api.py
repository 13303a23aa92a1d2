"""The few calls of Kubernetes' API that a node and a judge need."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class Api:
    """One API server, as one user. Raises :class:`urllib.error.HTTPError` with the server's answer as its text."""

    def __init__(self, url: str, ca: Path, token: str) -> None:
        self.url = url
        self._trusted = ssl.create_default_context(cafile=str(ca))
        self._token = token

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The answer to a request, as JSON."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._trusted) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.msg = f"{method} {path}: {error.read().decode()}"
            raise

    def items(self, path: str) -> list[dict[str, Any]]:
        """The objects of a list."""
        found: list[dict[str, Any]] = self.call("GET", path)["items"]
        return found

    def merge(self, path: str, body: Any) -> Any:
        """Change an object by a merge patch."""
        return self.call("PATCH", path, body, "application/merge-patch+json")
