"""What a connector reports to its program: deliveries, acknowledgements, its status, and long waits.

An ACK is cumulative, and messages of a stream are acknowledged in the order in which they were sent. So the number of
acknowledged messages says which ones they are, also where ids do not increase. Callbacks of a blocking connector run in
a thread of their own, so that they may use the connector and may take long. The status is a value with one sentence on
what the connector waits for, and a code of the one table of codes. Source:
``docs/producers.md#what-a-connector-waits-for``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wallaroo_spark.codes import titles
from wallaroo_spark.errors import one_line

_log = one_line("wallaroo_spark.connector")

MARK_SECONDS = 0.25
"""Precision of the age of the oldest unacknowledged message. A choice: ages are shown to people, in tenths of seconds.
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that was sent with ``on_delivery``."""

    stream: str
    id: int


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The progress of one stream: everything up to ``reference`` is committed by Spark."""

    stream: str
    reference: int
    """The last committed reference."""
    messages: int
    """Number of messages of this process that are acknowledged since the stream's acknowledgement before."""


OnDelivery = Callable[[Exception | None, Delivery], object]
"""Called once for a message: with None when it is acknowledged, or with the error because of which no acknowledgement
will be reported."""


class StreamDeliveries:
    """The deliveries of one stream. Messages are numbered from 1 in the order in which they are sent."""

    def __init__(self, name: str, deliveries: Deliveries) -> None:
        self.sent = 0
        """Number of messages sent."""
        self.acknowledged = 0
        """Number of messages acknowledged; they are the first ones."""
        self._name = name
        self._deliveries = deliveries
        self._waiting: deque[tuple[int, int, OnDelivery]] = deque()
        self._marks: deque[tuple[int, float]] = deque()
        self._failure: Exception | None = None

    @property
    def oldest(self) -> float | None:
        """The time, by ``time.monotonic``, at which the oldest unacknowledged message was sent; None for none."""
        return self._marks[0][1] if self._marks else None

    def appended(self, count: int) -> None:
        """Messages were sent."""
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][1] >= MARK_SECONDS:
            self._marks.append((self.sent, now))
        self.sent += count

    def expect(self, number: int, message_id: int, callback: OnDelivery) -> None:
        """Call back when the message with this number is acknowledged."""
        if number <= self.acknowledged:
            self._deliveries.call_soon(callback, None, Delivery(self._name, message_id))
        elif self._failure is not None:
            self._deliveries.call_soon(callback, self._failure, Delivery(self._name, message_id))
        else:
            self._waiting.append((number, message_id, callback))
            self._deliveries.waiting[self] = None

    def advance(self, acknowledged: int, reference: int | None) -> None:
        """So many messages are acknowledged now."""
        count = acknowledged - self.acknowledged
        if count <= 0:
            return
        self.acknowledged = acknowledged
        while self._marks and (self._marks[1][0] if len(self._marks) > 1 else self.sent) <= acknowledged:
            self._marks.popleft()
        waiting = self._waiting
        while waiting and waiting[0][0] <= acknowledged:
            _, message_id, callback = waiting.popleft()
            self._deliveries.call_soon(callback, None, Delivery(self._name, message_id))
        if not waiting:
            self._deliveries.waiting.pop(self, None)
        if reference is not None:
            self._deliveries.publish(Acknowledgement(self._name, reference, count))

    def fail(self, error: Exception) -> None:
        """No further acknowledgement will be reported."""
        self._failure = error
        waiting, self._waiting = self._waiting, deque()
        self._deliveries.waiting.pop(self, None)
        for _, message_id, callback in waiting:
            self._deliveries.call_soon(callback, error, Delivery(self._name, message_id))


class Deliveries:
    """The deliveries of all streams of a connector, and the callbacks that are due."""

    def __init__(self) -> None:
        self.call: Callable[[OnDelivery, Exception | None, Delivery], None] = call
        """Calls a callback that is due, or has another thread call it."""
        self.waiting: dict[StreamDeliveries, None] = {}
        """The streams with messages whose callback was not called."""
        self.subscriptions: weakref.WeakSet[Acknowledgements] = weakref.WeakSet()
        """The iterators that are told of acknowledgements."""
        self._due: deque[tuple[OnDelivery, Exception | None, Delivery]] = deque()
        self._scheduled = False

    def call_soon(self, callback: OnDelivery, error: Exception | None, delivery: Delivery) -> None:
        """Call a callback behind those that are due already, outside the handling of the frame that made it due."""
        self._due.append((callback, error, delivery))
        self._schedule()

    def publish(self, acknowledgement: Acknowledgement) -> None:
        """Tell the iterators."""
        for subscription in self.subscriptions:
            subscription.add(acknowledgement)

    def finish(self, error: Exception, failure: Exception | None) -> None:
        """The connector has ended: report ``error`` for waiting messages; iterators end, with ``failure`` if any."""
        for stream in list(self.waiting):
            stream.fail(error)
        for subscription in list(self.subscriptions):
            subscription.finish(failure)

    def call_due(self) -> None:
        """Call the callbacks that are due. An exception of a callback is logged; the others are still called."""
        self._scheduled = False
        try:
            while self._due:
                self.call(*self._due.popleft())
        finally:
            # A callback has interrupted the program, with KeyboardInterrupt for example.
            if self._due:
                self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.call_due)


def call(callback: OnDelivery, error: Exception | None, delivery: Delivery) -> None:
    """Call one callback; its exception is logged."""
    try:
        callback(error, delivery)
    except Exception:
        _log.exception(
            "on_delivery of message %d of stream %r has raised; the message is %s",
            delivery.id,
            delivery.stream,
            "acknowledged" if error is None else "not acknowledged",
        )


class Acknowledgements:
    """An asynchronous iterator of acknowledgements. It ends when the connector is closed.

    What comes faster than it is read is joined: one acknowledgement a stream, with the latest reference and the sum of
    the messages. So it takes no more memory than there are streams, and no message is counted twice or left out.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._pending: dict[str, Acknowledgement] = {}
        self._changed = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None
        deliveries.subscriptions.add(self)

    def __aiter__(self) -> Acknowledgements:
        return self

    async def __anext__(self) -> Acknowledgement:
        found = await self.next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def next(self) -> Acknowledgement | None:
        """The next acknowledgement; None at the end. Raises the error that has ended the connector."""
        while not self._pending and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        return self.take()

    def take(self) -> Acknowledgement | None:
        """The next acknowledgement that has come; None for none. Raises the error that has ended the connector."""
        if self._pending:
            return self._pending.pop(next(iter(self._pending)))
        if self._failure is not None:
            raise self._failure
        return None

    def add(self, new: Acknowledgement) -> None:
        """Messages were acknowledged."""
        before = self._pending.get(new.stream)
        messages = new.messages + (0 if before is None else before.messages)
        self._pending[new.stream] = Acknowledgement(new.stream, new.reference, messages)
        self._changed.set()

    def finish(self, failure: Exception | None) -> None:
        """The connector has ended."""
        self._ended = True
        self._failure = self._failure or failure
        self._changed.set()


MOST_WAITING = 100_000
"""Callbacks that may wait for slower ones before sends with a callback wait, too. A choice that bounds memory: some
30 MB."""

FINISH_SECONDS = 15.0
"""Limit in seconds of the wait for callbacks when the connector closes. A choice: that of closing the connection."""


class CallbackThread:
    """A daemon thread that calls callbacks one after another, in order. It starts with the first callback."""

    def __init__(self) -> None:
        self._due: deque[tuple[OnDelivery, Exception | None, Delivery]] = deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._calling = False
        self._finishing = False

    @property
    def inside(self) -> bool:
        """Whether this is called from the thread itself."""
        return threading.current_thread() is self._thread

    def put(self, callback: OnDelivery, error: Exception | None, delivery: Delivery) -> None:
        """Call a callback behind the others; never waits."""
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wallaroo-callbacks", daemon=True)
                self._thread.start()
            self._due.append((callback, error, delivery))
            self._condition.notify_all()

    def admit(self) -> None:
        """Wait while too many callbacks wait; not in a callback, which would wait for itself."""
        if len(self._due) < MOST_WAITING or self.inside:
            return
        with self._condition:
            self._condition.wait_for(lambda: len(self._due) < MOST_WAITING or self._finishing)

    def settle(self, seconds: float | None) -> bool:
        """Wait until all callbacks were called, at most so long; not in a callback. Returns whether they were."""
        if self.inside:
            return True
        with self._condition:
            return self._condition.wait_for(lambda: not self._due and not self._calling, seconds)

    def finish(self) -> None:
        """End the thread behind the callbacks that are due, and wait for its end; not in a callback. A callback that
        takes too long is logged and left behind.
        """
        settled = self.settle(FINISH_SECONDS)
        if not settled:
            _log.warning(
                "an on_delivery callback has taken more than %g seconds while the connector closed; %d callbacks "
                "behind it may not be called",
                FINISH_SECONDS,
                len(self._due),
            )
        with self._condition:
            self._finishing = True
            self._condition.notify_all()
            thread = self._thread
        if settled and thread is not None and not self.inside:
            thread.join(FINISH_SECONDS)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._calling = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._due or self._finishing)
                if not self._due:
                    self._thread = None
                    return
                one = self._due.popleft()
                self._calling = True
            call(*one)


LONG_SECONDS = 60.0
"""A wait that lasts longer is not healthy. A choice, the same as for a batch: many batches take some seconds."""

CONNECTOR_CODES = titles("connectors", "connector-closed", "no-session", "session-pending", "no-credits")
"""Every code of a connector with its meaning. Codes are stable: programs may compare them."""

_NO_WAIT = frozenset(["connector-not-started", "connector-closed", "connector-failed", "idle"])
"""Codes of a connector that waits for nothing."""

_STATES = {
    "failed": ("connector-failed", "has failed: {last_error}", "open another connector once the cause is mended"),
    "closed": ("connector-closed", "is closed", ""),
    "new": ("connector-not-started", "is not connected yet; it connects with the first stream", ""),
}
"""By state: code, sentence and cure, with fields of :class:`ConnectorStatus`."""

_SENDS = {
    "answer to NOTIFY": ("stream-pending", "the worker has not opened the stream", ""),
    "messages that are sent again first": ("resending", "messages of the session before are sent again first", ""),
    "credit": (
        "no-credits",
        "credits {credits}",
        "the worker grants new ones when it has room: check that the receiver's query runs and commits",
    ),
    "network": ("network-full", "the network takes no more bytes", "check the network to {worker}"),
    "memory": (
        "unacknowledged-full",
        "{unacknowledged_messages} messages ({unacknowledged_bytes} bytes) are unacknowledged, which is the limit",
        "check that the receiver's query commits, or raise max_unacknowledged",
    ),
}
"""The same by reason of a waiting send."""


@dataclass(frozen=True)
class ConnectorCause:
    """The one sentence on what a connector waits for."""

    code: str
    """A stable code, one of :data:`CONNECTOR_CODES`."""
    sentence: str
    """The sentence for a person, with program and instance in front."""
    healthy: bool
    """Whether everything works as it should; waiting for a commit for some seconds, for example, is healthy."""
    cure: str
    """What to do about it; empty when nothing has to be done."""


@dataclass(frozen=True)
class ConnectorStatus:
    """A snapshot of a connector."""

    program: str
    """The receiver's name, as given."""
    instance: str
    state: str
    """``new``, ``connecting``, ``connected``, ``failed`` or ``closed``."""
    worker: str | None
    """``host:port`` of the worker of the session; None without a session."""
    credits: int | None
    """Messages that may still be sent before the worker grants more; None without a session."""
    streams: int
    """Number of open streams."""
    unacknowledged_messages: int
    """Messages of all streams that were sent and are not acknowledged."""
    unacknowledged_bytes: int
    """Bytes that are kept for these messages."""
    oldest_unacknowledged: float | None
    """Seconds since the oldest unacknowledged message was sent, to a quarter of a second; None when there is none."""
    last_error: str
    """The error that has ended the connector, or else the reason why the last session or attempt has ended; empty when
    there was none."""
    waiting: float | None
    """Seconds for which the oldest waiting call waits; None while no call waits."""
    waiting_for: str | None
    """The reason of the oldest waiting send, as in :attr:`Connector.waiting_for`; None while no send waits."""
    down: float | None
    """Seconds without a session; None with one."""
    handshake_with: str | None
    """``host:port`` of the worker that has not answered HELLO yet; None for none."""
    lost_messages: int = 0
    """Messages of ephemeral streams that were lost in datagrams, of all sessions."""
    cause: ConnectorCause = field(init=False)
    """What it waits for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", _cause(self))


def _cause(status: ConnectorStatus) -> ConnectorCause:
    code, text, cure, seconds = _finding(status)
    verb = " " if code in _NO_WAIT else " waits: "
    sentence = f"{status.program}/{status.instance}{verb}{text}"
    return ConnectorCause(code, sentence, code != "connector-failed" and (seconds or 0.0) < LONG_SECONDS, cure)


def _finding(status: ConnectorStatus) -> tuple[str, str, str, float | None]:
    """Code, sentence behind the subject, cure, and seconds of the wait."""
    if status.state in _STATES:
        code, text, cure = _STATES[status.state]
        return code, text.format(**vars(status)), cure, None
    if status.state == "connecting":
        return _connecting(status)
    if status.waiting_for in _SENDS:
        code, text, cure = (part.format(**vars(status)) for part in _SENDS[status.waiting_for])
        return code, text + _for(status.waiting), cure, status.waiting
    cure = "check that the receiver's query runs; its status names the cause"
    if number := status.unacknowledged_messages:
        messages = "1 message is" if number == 1 else f"{number} messages are"
        text = f"{messages} sent to {status.worker} and not committed by Spark yet"
        oldest = status.oldest_unacknowledged
        return "commit-awaited", text + _for(oldest, ", the oldest for"), cure, oldest
    if status.waiting is not None:
        # Of a source that can be read again no message is kept, and so none is counted.
        text = f"what was sent to {status.worker} is not committed by Spark yet{_for(status.waiting)}"
        return "commit-awaited", text, cure, status.waiting
    return "idle", "has nothing to wait for: everything that was sent is acknowledged", "", None


def _connecting(status: ConnectorStatus) -> tuple[str, str, str, float | None]:
    if status.handshake_with is not None:
        text = f"the worker at {status.handshake_with} has not answered HELLO{_for(status.down)}"
        return "session-pending", text, "a worker answers once its query has started; check the query", status.down
    reason = f"; the last reason: {status.last_error}" if status.last_error else ""
    text = f"there is no session with a worker{_for(status.down)}{reason}"
    return "no-session", text, "check that the receiver runs, and its workers' addresses", status.down


def _for(seconds: float | None, before: str = ", for") -> str:
    return "" if seconds is None else f"{before} {seconds:.1f} s"


WAIT_SECONDS = 15.0
"""Seconds after which a wait is logged. A choice: a usual wait for an ACK is a batch, which takes a second or two, and
about ten when it is the first one of its session, or waits for a trigger such as the sample's."""
LONGEST_PAUSE = 300.0
"""Most seconds between two lines of one wait; each pause is twice the one before. A choice: an operator who looks at
the log of the last minutes finds one."""


class WaitLog:
    """The waits of one connector's calls. ``describe`` returns the sentence on the reason of the wait."""

    def __init__(self, name: str, describe: Callable[[], str]) -> None:
        self.describe = describe
        self._name = name
        self._since: dict[object, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pause = WAIT_SECONDS
        self._logged: float | None = None

    @property
    def since(self) -> float | None:
        """The loop's time at which the oldest wait began; None while no call waits."""
        return next(iter(self._since.values()), None)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A call waits within the block."""
        loop = asyncio.get_running_loop()
        me = object()
        self._since[me] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(WAIT_SECONDS, self._look, loop)
        failed = True
        try:
            yield
            failed = False
        finally:
            del self._since[me]
            if self._logged is not None and not self._since:
                self._goes_on(loop, failed=failed)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log if the oldest wait is long enough, and look again later."""
        self._timer = None
        since = self.since
        if since is None:
            return
        waited = loop.time() - since
        if self._logged is not None and since > self._logged:
            # The wait that was logged is over, and this is a younger one.
            self._goes_on(loop)
        due = self._pause if self._logged is not None else WAIT_SECONDS
        if waited >= due:
            self._logged = since if self._logged is None else self._logged
            self._pause = min(2 * due, waited + LONGEST_PAUSE)
            _log.warning("%s", self.describe())
            due = self._pause
        self._timer = loop.call_later(max(0.0, due - waited), self._look, loop)

    def _goes_on(self, loop: asyncio.AbstractEventLoop, *, failed: bool = False) -> None:
        """The wait that was logged is over. A call that has failed, or was cancelled, does not go on."""
        assert self._logged is not None
        if not failed:
            _log.warning("%s goes on after %.0f seconds", self._name, loop.time() - self._logged)
        self._logged, self._pause = None, WAIT_SECONDS
