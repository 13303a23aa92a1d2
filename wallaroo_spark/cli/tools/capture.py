"""``wallaroo-spark capture``: a proxy that records a connector's frames, and can disturb the connection.

``wallaroo-spark replay``: sends the messages of a capture again; needs no Spark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from wallaroo_spark.cli.common import listen_address, print_result
from wallaroo_spark.cli.send.inputs import ConnectionOptions
from wallaroo_spark.cli.signals import exit_after_interrupt, on_signals, run_until_sigterm
from wallaroo_spark.cli.verbs import Json, Number, verb
from wallaroo_spark.connector import Connector
from wallaroo_spark.connector.settings import QUIC
from wallaroo_spark.errors import WallarooError, one_line
from wallaroo_spark.extras import needed_by
from wallaroo_spark.texts import count, size
from wallaroo_spark.transport import client_context, format_address, parse_address, server_context
from wallaroo_spark.wiretap.proxy import STUTTER_BYTES, End, Faults, Proxy, Trouble, Watcher
from wallaroo_spark.wiretap.recording import Recorder, read
from wallaroo_spark.wiretap.replay import RecordedConnector, Replay, ReplayTotals

if TYPE_CHECKING:
    from wallaroo_spark.wiretap.channels import ChannelProxy

log = one_line(logging.getLogger("wallaroo_spark.wiretap"))

TROUBLES = {"slow": Trouble.SLOW, "drip": Trouble.DRIP, "stall": Trouble.STALL, "swallow": Trouble.SWALLOW}


@dataclasses.dataclass(frozen=True)
class FaultOptions:
    """The faults of the connections.

    Options:
        --delay SECONDS: Pass all bytes on later.
        --stutter SECONDS: Pause at random offsets in each direction, for this many seconds on average.
        --stutter-bytes BYTES: Bytes between two pauses, on average.
        --cut BYTES: Cut each connection after this many bytes of one direction, on average; half of the cuts are
            resets.
        --split BYTES: Pass bytes on in pieces of 1 to BYTES bytes.
        --seed: The same seed causes the same faults at the same bytes.
    """

    delay: Annotated[float, Number(0, 60)] = 0.0
    stutter: Annotated[float, Number(0, 3600)] = 0.0
    stutter_bytes: Annotated[int, click.IntRange(1)] = STUTTER_BYTES
    cut: Annotated[int, click.IntRange(0)] = 0
    split: Annotated[int, click.IntRange(0)] = 0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class CaptureTls:
    """TLS at the two sides of the proxy.

    Options:
        --tls-certificate FILE: PEM file of a certificate; accept TLS with it.
        --tls-key FILE: PEM file of its key; empty: in the certificate's file.
        --to-tls: Speak TLS to the worker; verify it as this system does.
        --to-tls-ca FILE: PEM file of the authority of the worker's certificate.
        --to-tls-certificate FILE: PEM file of a certificate to show the worker.
        --to-tls-key FILE: PEM file of the key of --to-tls-certificate.
    """

    tls_certificate: str = ""
    tls_key: str = ""
    to_tls: bool = False
    to_tls_ca: str = ""
    to_tls_certificate: str = ""
    to_tls_key: str = ""

    def __post_init__(self) -> None:
        if self.tls_key and not self.tls_certificate:
            raise click.UsageError("--tls-key needs --tls-certificate")

    def check_quic(self) -> None:
        """Raise the error of options that cannot work over QUIC."""
        if not self.tls_certificate:
            raise click.UsageError("QUIC always has TLS; give --tls-certificate, with which the connector is accepted")
        if self.to_tls_certificate or self.to_tls_key:
            raise click.UsageError("a worker asks for no certificate over QUIC; leave --to-tls-certificate out")

    @property
    def server(self) -> ssl.SSLContext | None:
        """For the connector's side; None without TLS."""
        return server_context(self.tls_certificate, self.tls_key) if self.tls_certificate else None

    @property
    def client(self) -> ssl.SSLContext | None:
        """For the worker's side; None without TLS."""
        files = self.to_tls_ca, self.to_tls_certificate, self.to_tls_key
        return client_context(*files) if self.to_tls or any(files) else None


@verb()
def capture(
    file: Annotated[Path | None, click.Path(dir_okay=False, path_type=Path)] = None,
    *,
    listen: str = "127.0.0.1:0",
    to: str,
    no_file: bool = False,
    keep_cookies: bool = False,
    max_bytes: Annotated[int | None, click.IntRange(4096)] = None,
    keep: Annotated[int, click.IntRange(0)] = 4,
    faults: FaultOptions,
    trouble: Annotated[str | None, click.Choice(list(TROUBLES))] = None,
    tls: CaptureTls,
    as_json: Json = False,
) -> None:
    """Run a proxy between a connector and a worker, and record the bytes that pass to FILE, with time and direction.

    The bytes are not changed; wallaroo-spark decode prints their frames, and wallaroo-spark replay sends them again.
    The file contains all messages of the connector, so protect it as you protect the messages. The cookie in HELLO is
    masked; bytes that are not a HELLO of any revision are recorded unchanged.

    Give the connector the address of this proxy as its only worker. A connector that looks up workers in the registry
    does not use the proxy, unless the receiver's option advertise names it. A connector that a worker redirects to
    another worker leaves the proxy, too. TLS is recorded only when the proxy has a certificate to accept it with.

    Over QUIC it records the frames of all channels in the order in which the proxy takes them, and no packets. It needs
    --tls-certificate, and disturbs nothing.

    Faults are for tests of a connector: --delay, --stutter, --cut and --split take effect at bytes that follow from
    --seed. --trouble is slow (400 kB/s), drip (one byte at a time), stall (nothing from the worker) or swallow (nothing
    arrives, and no connection ends). The faults are recorded in FILE, too.

    Options:
        --listen HOST:PORT: Address for the connector; port 0 takes any free port.
        --to HOST:PORT: Address of the worker; quic://HOST:PORT: over QUIC, at both sides.
        --no-file: Record nothing; only disturb the connections.
        --keep-cookies: Record the cookie in HELLO, too, in place of asterisks.
        --max-bytes BYTES: Rename a file of this size to FILE.1 and begin a new one. Without it the file grows without
            a limit.
        --keep: Old files to keep.
        --trouble: Apply this treatment to all bytes; see below.
        --json: Print the address and the final counts as lines of JSON.

    Examples:
        wallaroo-spark capture --listen 127.0.0.1:7199 --to worker-1:7100 shop.capture
        wallaroo-spark capture --to worker-1:7100 --cut 100000 --stutter 0.5 --seed 7 shop.capture
        wallaroo-spark capture --to worker-1:7100 --delay 0.2 --no-file
    """
    if (file is None) == (not no_file):
        raise click.UsageError("give a FILE to record to, or --no-file")
    over_quic = to.startswith(QUIC)
    target = parse_address(to.removeprefix(QUIC))
    if over_quic:
        tls.check_quic()
        if trouble or faults != FaultOptions():
            raise click.UsageError("faults are for TCP, and nothing is disturbed over QUIC; leave them out")
    events: queue.SimpleQueue[int | WallarooError] = queue.SimpleQueue()
    recorder = None
    with contextlib.ExitStack() as stack:
        unused = stack.enter_context(contextlib.ExitStack())
        if file is not None:
            recorder = Recorder(
                file,
                format_address(*target),
                keep_cookies=keep_cookies,
                max_bytes=max_bytes,
                keep=keep,
                failed=events.put,
            )
            stack.callback(recorder.close)
            # A proxy that does not start leaves no empty file, for which the next attempt would be refused.
            unused.callback(recorder.path.unlink)
        if over_quic:
            made = _channel_proxy(target, listen_address(listen.removeprefix(QUIC)), tls, recorder)
            proxy: Proxy | ChannelProxy = stack.enter_context(made)
        else:
            watched = Proxy(
                target,
                listen_address(listen),
                tls=tls.server,
                target_tls=tls.client,
                faults=Faults(**vars(faults)),
                watcher=recorder,
            )
            proxy = stack.enter_context(watched)
            if trouble:
                watched.become(TROUBLES[trouble])
        unused.pop_all()
        shown = {"listening": proxy.address, "to": to, "file": None if file is None else str(file)}
        line = f"Listening on {proxy.address}, passing on to {to}, recording {file or 'nothing'}"
        print_result(as_json, shown, line)
        ended = _wait(events)
    if isinstance(ended, WallarooError):
        raise ended
    _say_total(proxy, recorder, as_json)
    exit_after_interrupt(ended)


def _channel_proxy(
    target: tuple[str, int], listen: tuple[str, int], tls: CaptureTls, watcher: Watcher | None
) -> ChannelProxy:
    with needed_by("a capture over QUIC", "quic"):
        from wallaroo_spark.wiretap.channels import ChannelProxy
    return ChannelProxy(
        target, listen, certificate=tls.tls_certificate, key=tls.tls_key, ca=tls.to_tls_ca, watcher=watcher
    )


def _wait(events: queue.SimpleQueue[int | WallarooError]) -> int | WallarooError:
    """Wait for SIGINT, SIGTERM or a failure that ends the capture."""
    with on_signals(events.put):
        while True:
            event = events.get()
            if isinstance(event, WallarooError) and event.fields.get("reason") == "tls":
                # Only this connection is refused; others may be recorded.
                log.error("%s", event.message)
                continue
            return event


def _say_total(proxy: Proxy | ChannelProxy, recorder: Recorder | None, as_json: bool) -> None:
    sent = None if recorder is None else {str(end): recorder.sent[end] for end in End}
    text = count(proxy.connections, "connection")
    if recorder is not None:
        of_connector, of_worker = size(recorder.sent[End.CONNECTOR]), size(recorder.sent[End.WORKER])
        text += f", {of_connector} of the connector and {of_worker} of the worker are in {recorder.path}"
    print_result(as_json, {"connections": proxy.connections, "recorded_bytes": sent}, text)


@verb()
def replay(
    files: Annotated[tuple[Path, ...], click.Path(exists=True, dir_okay=False, path_type=Path), "FILE..."],
    *,
    to: str,
    pace: Annotated[float | None, Number(min=0, min_open=True)] = None,
    instance: str = "",
    connection: Annotated[int | None, click.IntRange(1)] = None,
    protocol_version: str = "",
    given: ConnectionOptions,
    drain_timeout: Annotated[float, Number(min=0, min_open=True)] = 300.0,
    as_json: Json = False,
) -> None:
    """Send the messages of a capture again. Of a rotated capture give all files, the oldest first.

    They are sent as the recorded connectors would send them: under their instance names and stream ids, in the same
    revision, with credits, and again after a lost connection. Messages that the receiver has committed are skipped. So
    after a failed batch the handler of the query can be changed and tried again without the producer. --instance sends
    all messages again. No other program may use the instance meanwhile. The capture does not contain the cookie, so it
    must be given.

    Messages are distinguished by increasing ids; a receiver with messageIds=opaque is not supported. Frames that break
    the protocol are not sent. The exit status is 0 only when everything is acknowledged.

    Options:
        --to HOST:PORT,…: Addresses of one or more workers.
        --pace FACTOR: 1: as they came; 2: twice as fast. Without it: as fast as credits allow.
        --instance NAME: Send all messages as this instance, on streams of its own, including committed messages.
        --connection NUMBER: Send only the messages of this connection.
        --protocol-version TEXT: Protocol version; else the recorded one.
        --drain-timeout SECONDS: Longest wait at the end until everything is acknowledged.
        --json: Print the numbers as one line of JSON.

    Examples:
        wallaroo-spark replay shop.capture --to worker-1:7100 --cookie env:COOKIE
        wallaroo-spark replay shop.capture --to worker-1:7100 --pace 1 --instance again-1
    """

    def connect(recorded: RecordedConnector) -> Connector:
        return Connector(
            recorded.program,
            instance=recorded.instance,
            workers=to,
            version=protocol_version or recorded.version,
            revision=recorded.revision,
            **given.settings(),
            drain_timeout=drain_timeout,
        )

    with contextlib.ExitStack() as stack:
        events = read([stack.enter_context(path.open("rb")) for path in files])
        totals = run_until_sigterm(Replay(events, connect, pace=pace, instance=instance, connection=connection).run())
    print_result(as_json, dataclasses.asdict(totals), _replayed(totals))


def _replayed(totals: ReplayTotals) -> str:
    text = f"{count(totals.sent, 'message')} of {count(totals.streams, 'stream')} sent and acknowledged"
    if totals.committed:
        text += f"; {count(totals.committed)} committed before and skipped"
    if totals.repeated:
        text += f"; {count(totals.repeated)} recorded more than once and sent once"
    if totals.unreadable:
        text += f"; {count(totals.unreadable, 'frame')} incomplete or wrong, and left out"
    return text
