"""Clients of the HTTP door, ``python -m proving.producers.http_clients CLIENT``, with the contract of this folder.

``--bootstrap`` has the addresses of all slots, with commas. Each request has all messages that are due, one for each
line, and is sent again until it is answered:

- ``curl`` sends without a name. It is given the body by a pipe, in two halves with a pause between them, so that it is
  often within a body when a worker dies.
- ``curl-with-tokens`` names itself and numbers its requests by their last message. It follows redirects and repeats by
  itself what curl can repeat.
- ``browser`` does the same as a page in Chromium, whose requests need CORS.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import itertools
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from proving.browser import Browser
from proving.producers.load import Load, load_of

AGAIN_SECONDS = 1.0
"""The pause before a request is sent again, as ``Retry-After`` says. A choice."""
HALF_SECONDS = 0.5
"""The pause within a body. A choice."""
LONGEST_SECONDS = 60
"""The longest request: longer than the door's own ``http.timeout``."""
GIVEN_UP = 409


def urls_of(load: Load) -> list[str]:
    """The address of the stream at each slot."""
    return [f"http://{place}/v1/streams/{load.topic}" for place in load.bootstrap.split(",")]


def fields_of(load: Load, token: int | None) -> dict[str, str]:
    """The fields of a request; with a token it also has the client's name."""
    found = {"Content-Type": "application/x-ndjson", "Wallaroo-Key": load.client_id}
    if load.password:
        found["Authorization"] = f"Bearer {load.password}"
    if token is not None:
        found |= {"Wallaroo-Instance": load.client_id, "Wallaroo-Token": str(token)}
    return found


def lines_of(numbers: range) -> bytes:
    """The messages as NDJSON."""
    return b"".join(b"%d\n" % number for number in numbers)


class Curl:
    """One stream's requests, each a run of curl."""

    def __init__(self, load: Load, *, tokens: bool) -> None:
        self._load = load
        self._tokens = tokens

    def send(self, numbers: range) -> int:
        """Send a request until it is answered for good; returns the status."""
        for url in itertools.cycle(urls_of(self._load)):
            status = self._once(url, numbers)
            if status in (200, GIVEN_UP):
                return status
            time.sleep(AGAIN_SECONDS)
        raise AssertionError("there is an address")

    def _once(self, url: str, numbers: range) -> int:
        fields = fields_of(self._load, numbers[-1] + 1 if self._tokens else None)
        if self._tokens:
            # Without --location-trusted curl keeps the secret from the other port of a redirect.
            more = ["--location-trusted", "--retry", "2", "--retry-all-errors", "--data-binary", "@-"]
            status, location = self._run(url, fields, more, [lines_of(numbers)])
        else:
            middle = len(numbers) // 2
            halves = [lines_of(numbers[:middle]), lines_of(numbers[middle:])]
            status, location = self._run(url, fields, ["-X", "POST", "-T", "-"], halves)
        while status == 202:
            status, location = self._run(f"{location}{'&' if '?' in location else '?'}wait=10", fields, [], [])
        return status

    def _run(self, url: str, fields: dict[str, str], more: list[str], parts: list[bytes]) -> tuple[int, str]:
        """Run curl; returns the status, 0 for none, and the address of the field Location."""
        command = ["curl", "-sS", "--max-time", str(LONGEST_SECONDS), "-o", "/dev/null", url, *more]
        command += ["-w", "%{http_code} %{url_effective} %header{location}"]
        for name, value in fields.items():
            command += ["-H", f"{name}: {value}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                for number, part in enumerate(parts):
                    time.sleep(HALF_SECONDS if number else 0)
                    process.stdin.write(part)
                    process.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            said = process.stdout.read().decode().split(" ")
        if process.returncode or len(said) != 3:
            return 0, ""
        place = urlsplit(said[1])
        return int(said[0]), f"{place.scheme}://{place.netloc}{said[2]}"


PAGE = b"""<!doctype html><meta charset="utf-8"><title>A page that sends</title><script>
const answers = [];
const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
async function once(url, fields, body) {
  try {
    let answer = await fetch(url, body === undefined ? {headers: fields} : {method: "POST", headers: fields, body});
    await answer.text();
    return answer;
  } catch (error) { return {status: 0}; }
}
async function send(urls, fields, body, again) {
  for (let tried = 0; ; tried++) {
    let url = urls[tried % urls.length];
    let answer = await once(url, fields, body);
    while (answer.status === 202) {
      const place = new URL(answer.headers.get("Location"), url);
      place.searchParams.set("wait", "10");
      url = place.href;
      answer = await once(url, {Authorization: fields.Authorization});
    }
    if (answer.status === 200 || answer.status === 409) return answer.status;
    await pause(again);
  }
}
</script>"""


class _Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Its log is the door's."""


@contextlib.contextmanager
def browser(load: Load) -> Iterator[Callable[[range], int]]:
    """A page that sends requests with tokens."""
    with (
        tempfile.TemporaryDirectory(prefix="sending-page-") as folder,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server,
        contextlib.closing(Browser(Path(folder))) as opened,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with opened.open(f"http://127.0.0.1:{server.server_port}/") as page:

            def send(numbers: range) -> int:
                fields = fields_of(load, numbers[-1] + 1)
                given = [urls_of(load), fields, lines_of(numbers).decode(), 1000 * AGAIN_SECONDS]
                page.run(f"answers.length = 0; send(...{json.dumps(given)}).then(status => answers.push(status)); 0")
                # An answer may take longer than one call of the browser may.
                while (found := page.run("answers[0] || 0")) == 0:
                    time.sleep(0.1)
                return int(found)

            yield send
        server.shutdown()


def _sender(client: str, load: Load) -> contextlib.AbstractContextManager[Callable[[range], int]]:
    if client == "browser":
        return browser(load)
    return contextlib.nullcontext(Curl(load, tokens=client == "curl-with-tokens").send)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=["curl", "curl-with-tokens", "browser"])
    load = load_of(parser)
    with _sender(parser.parse_args().client, load) as send:
        for numbers in load.requests():
            status = send(numbers)
            load.tell(numbers, "" if status == 200 else str(status))
    print("end", flush=True)


if __name__ == "__main__":
    _main()
