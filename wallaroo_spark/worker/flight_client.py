"""What the driver and the reading tasks ask of a worker. Source: ``design.md``, The picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from wallaroo_spark.errors import TransportError
from wallaroo_spark.worker.ledger import Reference

Range = tuple[str, str, Reference | None, Reference]
"""Scope, stream id as decimal text, and the references (from, to]."""
References = Mapping[str, Mapping[str, Reference]]


class WorkerClient:
    """Calls to one worker's inner port. Every method raises :class:`TransportError` when the worker does not answer."""

    def __init__(self, address: str, token: str, timeout: float = 10.0) -> None:
        self.address = address
        self._timeout = timeout
        self._headers = [(b"authorization", f"Bearer {token}".encode())]
        self._client = flight.connect(f"grpc://{address}")

    def close(self) -> None:
        """Give the connection up."""
        self._client.close()

    def available(self, version: int, wait: float) -> dict[str, Any]:
        """Wait up to ``wait`` seconds until the worker's buffer is at another version; its version and connectors."""
        return self._act("available", {"version": version, "wait": wait}, self._timeout + wait)

    def plan(self, start: References, rows: int | None = None, bytes: int | None = None) -> dict[str, Any]:
        """How far a batch that starts at ``start`` may go on this worker: ``ends``, ``rows``, ``bytes``, ``epoch``."""
        return self._act("plan", {"start": start, "rows": rows, "bytes": bytes})

    def rewind(self, epoch: int, batch: int, references: References) -> None:
        """The query goes on from exactly these references."""
        self._act("rewind", {"epoch": epoch, "batch": batch, "references": references})

    def committed(self, epoch: int, batch: int, references: References) -> None:
        """Spark has committed ``batch``; the references that changed since the last call."""
        self._act("committed", {"epoch": epoch, "batch": batch, "references": references})

    def status(self) -> dict[str, Any]:
        """The worker's status."""
        return self._act("status", {})

    def stop(self, reason: str) -> None:
        """Ask the worker to leave in good order."""
        self._act("stop", {"reason": reason})

    def read(
        self, ranges: Sequence[Range], *, boundaries: bool, wait: float
    ) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, Reference | None, bool]]]]:
        """The ranges' rows as they become complete, for up to ``wait`` seconds without any.

        With each batch come marks: a range's index, the reference that its rows now lead up to (None: it had none),
        and whether the range is done. A range without a final mark is not there.
        """
        ticket = flight.Ticket(json.dumps({"ranges": ranges, "boundaries": boundaries, "wait": wait}).encode())
        try:
            reader = self._client.do_get(ticket, flight.FlightCallOptions(headers=self._headers))
            for chunk in reader:
                yield chunk.data, [tuple(mark) for mark in json.loads(chunk.app_metadata.to_pybytes())]
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._failed("read", error) from None

    def _act(self, name: str, body: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        options = flight.FlightCallOptions(headers=self._headers, timeout=timeout or self._timeout)
        try:
            results = list(self._client.do_action(flight.Action(name, json.dumps(body).encode()), options))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._failed(name, error) from None
        answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return answer

    def _failed(self, what: str, error: Exception) -> TransportError:
        detail = str(error).split(". gRPC client debug context")[0]
        return TransportError(f"worker at {self.address} did not answer {what!r}: {detail}", address=self.address)
