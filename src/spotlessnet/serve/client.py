"""A small client of a desk, on Python's own HTTP: `Client("https://desk", token).send("case 7", ["ann"])`."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from spotlessnet.core.errors import DataError, ResourceError, SettingError


@dataclass(frozen=True)
class Client:
    """Speaks to one desk with one token.

    **Arguments:**

    - `address`: such as `http://127.0.0.1:8642`.
    - `token`: told once when it was made.
    - `seconds`: how long to wait for an answer.
    """

    address: str
    token: str = field(repr=False)
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.address.startswith(("http://", "https://")):
            raise SettingError(f"A desk's address must begin with http:// or https://, but is {self.address[:60]!r}.")

    def send(self, key: str, ids: Sequence[str], due: str | None = None) -> dict[str, Any]:
        """Ask for people to be forgotten; sent twice with one key it is one request, so sending again is safe."""
        return self._call("POST", "/api/v1/requests", {"key": key, "ids": list(ids), "due": due})

    def status(self, request: str) -> dict[str, Any]:
        """One request with its timeline."""
        return self._call("GET", f"/api/v1/requests/{quote(request, safe='')}")

    def list(self, kind: str = "open", after: str | None = None) -> dict[str, Any]:
        """Requests by their date, a page at a time."""
        asked = {"kind": kind, **({} if after is None else {"after": after})}
        return self._call("GET", f"/api/v1/requests?{urlencode(asked)}")

    def receipt(self, request: str) -> dict[str, Any]:
        """The signed receipt of a closed request and its proof, as a bundle."""
        return self._call("GET", f"/api/v1/requests/{quote(request, safe='')}/receipt")

    def wait(self, request: str, seconds: float = 3600.0, every: float = 2.0) -> dict[str, Any]:
        """Wait until a request is closed or cancelled."""
        ends = time.monotonic() + seconds
        while (found := self.status(request))["state"] not in ("closed", "cancelled"):
            if time.monotonic() > ends:
                raise ResourceError(f"The request is {found['state']} after {seconds:.0f} s of waiting.")
            time.sleep(every)
        return found

    def _call(self, method: str, path: str, told: Any = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        body = None if told is None else json.dumps(told).encode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        asked = Request(self.address.rstrip("/") + path, body, headers, method=method)
        try:
            with urlopen(asked, timeout=self.seconds) as answer:
                return dict(json.load(answer))
        except HTTPError as e:
            with e:
                raise DataError(f"The desk answered {e.code}: {_detail(e.read())}") from e
        except (OSError, HTTPException, ValueError) as e:  # not there, gone in the middle, or not a desk
            raise ResourceError(f"The desk at {self.address} does not answer ({e}). Is it running?") from e


def _detail(content: bytes) -> str:
    try:
        return str(json.loads(content)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return "no reason was given."
