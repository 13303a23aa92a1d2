"""A random application on one side of a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from proving.aqueduct.ledger import SentMessage
from proving.aqueduct.surroundings import Surroundings
from proving.simulator.engine.core import Part, Steps
from wallaroo_spark.aqueduct.errors import MessageTooLarge, NoRoom, SenderClosed
from wallaroo_spark.aqueduct.frames import ChannelId, Half, Side
from wallaroo_spark.aqueduct.machine import ConnectionMachine

LARGEST_TREE = 400
"""The most channels of one history."""


class Shell(Protocol):
    """The machine below an application."""

    side: Side
    part: Part
    machine: ConnectionMachine
    over: bool
    around: Surroundings

    @property
    def now(self) -> float:
        """The side's own clock."""

    def log(self, text: str) -> None:
        """Add a line to the history."""

    def event(self, name: str, *arguments: object) -> None:
        """Call the machine, and do what it wants."""

    def follow(self) -> None:
        """Do what the machine wants."""


@dataclass
class HeldSender:
    """A sender as its application knows it."""

    unreliable: bool
    unordered: bool
    waits: bool = False
    """Whether it waits for room."""
    over: bool = False


@dataclass
class HeldReceiver:
    """A receiver as its application knows it."""

    pause: float | None
    """Seconds between two messages that are taken; None where none is taken before the end."""
    taking: bool = False
    over: bool = False


@dataclass
class Held:
    """All that an application has."""

    senders: dict[ChannelId, HeldSender] = field(default_factory=dict)
    receivers: dict[ChannelId, HeldReceiver] = field(default_factory=dict)
    unattached: list[ChannelId] = field(default_factory=list)
    """Channels of which the other end was not sent yet."""


class Application:
    """Acts at random for a while; then it ends all that it has, and takes and ends all that comes."""

    def __init__(self, side: Shell) -> None:
        self.side = side
        self.held = Held()
        self.leaving = False
        self._random = side.around.sim.random
        self._profile = side.around.profile
        self._judge = side.around.judge

    def begin(self) -> None:
        """Begin to act."""
        self.side.around.sim.spawn(self.side.part, self._live())

    def _live(self) -> Steps:
        for _ in range(self._profile.actions):
            yield self._random.expovariate(1 / self._profile.pause)
            if self.side.over:
                return
            self._choose()()
        self._leave()

    def _choose(self) -> Callable[[], None]:
        actions = (self._send, self._finish, self._cancel, self._close, self._create, self._forget, self._take_some)
        return self._random.choices(actions, (60, 5, 4, 5, 8, 3, 15))[0]

    def _leave(self) -> None:
        self.leaving = True
        for channel in list(self.held.unattached):
            self._end(channel, channel.half_at(self.side.side))
        for channel, sender in list(self.held.senders.items()):
            # One that waits for room ends when it has room.
            if not sender.over and not sender.waits:
                self._end_sender(channel)
        for channel, receiver in list(self.held.receivers.items()):
            if not receiver.over:
                self._drain(channel)

    # Ends of channels.

    def gets(self, channel: ChannelId) -> None:
        """The application has an end of a channel from now on; the judge knows that."""
        if channel.half_at(self.side.side) is Half.SENDER:
            self.held.senders[channel] = HeldSender(
                unreliable=self._random.random() < self._profile.unreliable and not channel.oneshot,
                unordered=self._random.random() < 0.3,
            )
        else:
            pause = self._random.choice((0.0, 0.0, 0.1, 1.0, None))
            self.held.receivers[channel] = HeldReceiver(pause)

    def begins_with(self, channel: ChannelId) -> None:
        """Decide what becomes of an end of a channel that has just come."""
        sender = self.held.senders.get(channel)
        if (sender or self.held.receivers[channel]).over:
            return
        if self.leaving:
            if sender is not None:
                self._end_sender(channel)
            else:
                self._drain(channel)
        elif self._random.random() < 0.06:
            self._end(channel, channel.half_at(self.side.side))

    def _end(self, channel: ChannelId, half: Half) -> None:
        """Drop an end of a channel, as an application does that forgets it. Its other end can be sent no more."""
        if channel in self.held.unattached:
            self.held.unattached.remove(channel)
        if half is Half.SENDER:
            self._judge.cancelled(channel)
            self.side.event("cancel", channel)
            self.held.senders[channel].over = True
        else:
            self._judge.closed(channel)
            self.side.event("close_receiver", channel)
            self.held.receivers[channel].over = True

    def _end_sender(self, channel: ChannelId) -> None:
        # A oneshot channel finishes with its message.
        if self._random.random() < 0.8 and not channel.oneshot:
            self._finish_sender(channel)
        else:
            self._end(channel, Half.SENDER)

    def _finish_sender(self, channel: ChannelId) -> None:
        self.held.senders[channel].over = True
        try:
            self.side.event("finish", channel)
        except SenderClosed:
            # Its receiver is gone. The notice comes when the fate of all its messages is known.
            self.side.follow()
        else:
            self._judge.finished(channel)

    def _drain(self, channel: ChannelId) -> None:
        if self._random.random() < 0.8:
            self.held.receivers[channel].pause = self._random.choice((0.0, 0.01))
            self.available(channel)
        else:
            self._end(channel, Half.RECEIVER)

    # Actions.

    def _some_sender(self) -> ChannelId | None:
        usable = [
            channel
            for channel, one in self.held.senders.items()
            if not one.over and not one.waits and channel not in self.held.unattached
        ]
        # Newer channels are likelier, so that they nest.
        return usable[-1 - min(int(self._random.expovariate(0.5)), len(usable) - 1)] if usable else None

    def _some_receiver(self) -> ChannelId | None:
        usable = [channel for channel, one in self.held.receivers.items() if not one.over]
        return self._random.choice(usable) if usable else None

    def _send(self) -> None:
        channel = self._some_sender()
        if channel is None:
            return
        for _ in range(self._random.choice((1, 1, 1, 3, 10))):
            if not self._send_one(channel):
                return

    def _send_one(self, channel: ChannelId) -> bool:
        """Send a message; False when the sender takes no more."""
        sender = self.held.senders[channel]
        if sender.over or sender.waits:
            return False
        reliable = not (sender.unreliable and self._random.random() < 0.7)
        ordered = reliable and not (sender.unordered and self._random.random() < 0.6)
        attached = self._attachments()
        limits = self._profile.limits
        size = self._random.choice((0, 1, 20, 100, limits.window_bytes // 2))
        payload = self._random.randbytes(size)
        try:
            number = self.side.machine.send(
                channel, payload, now=self.side.now, attach=attached, reliable=reliable, ordered=ordered
            )
        except NoRoom:
            sender.waits = True
            self.side.log(f"waits for room of {channel}")
            self._give_back(attached)
            self.side.around.sim.history.counts["waits for room"] += 1
            return False
        except SenderClosed:
            sender.over = True
            self._give_back(attached)
            return False
        except MessageTooLarge:
            self._give_back(attached)
            if reliable:
                raise
            return True
        message = SentMessage(self._judge.ledger.channels[channel], number, reliable, ordered, payload, tuple(attached))
        self._judge.sent(message)
        self.side.log(f"sends {message}, {size} bytes, {list(map(int, attached))}")
        sender.over = channel.oneshot
        self.side.follow()
        return not sender.over

    def _attachments(self) -> list[ChannelId]:
        if self._random.random() >= self._profile.attaches:
            return []
        found = []
        for _ in range(self._random.choice((1, 1, 2, 3))):
            if self.held.unattached and self._random.random() < 0.5:
                found.append(self._random.choice(self.held.unattached))
            elif len(self._judge.ledger.channels) < LARGEST_TREE:
                found.append(self._mint())
        found = list(dict.fromkeys(found))
        self.held.unattached = [one for one in self.held.unattached if one not in found]
        return found

    def _give_back(self, attached: list[ChannelId]) -> None:
        self.held.unattached += attached

    def _mint(self) -> ChannelId:
        half = self._random.choice((Half.SENDER, Half.RECEIVER))
        channel = self.side.machine.channel(half, oneshot=self._random.random() < 0.2)
        self._judge.created(channel)
        self.side.log(f"creates {channel}")
        self.held.unattached.append(channel)
        self.gets(channel)
        return channel

    def _create(self) -> None:
        if len(self._judge.ledger.channels) < LARGEST_TREE:
            self._mint()

    def _forget(self) -> None:
        if self.held.unattached:
            channel = self._random.choice(self.held.unattached)
            self._end(channel, channel.half_at(self.side.side))

    def _finish(self) -> None:
        channel = self._some_sender()
        if channel is not None and not channel.oneshot:
            self._finish_sender(channel)

    def _cancel(self) -> None:
        usable = [
            channel for channel in self.held.senders if Half.SENDER not in self._judge.ledger.channels[channel].ends
        ]
        if usable:
            self._end(self._random.choice(usable), Half.SENDER)

    def _close(self) -> None:
        channel = self._some_receiver()
        if channel is not None:
            self._end(channel, Half.RECEIVER)

    def _take_some(self) -> None:
        channel = self._some_receiver()
        if channel is not None:
            self._take(channel)

    # Notices.

    def available(self, channel: ChannelId) -> None:
        """Messages are in a queue: take them at the receiver's own pace."""
        receiver = self.held.receivers[channel]
        if not receiver.taking and receiver.pause is not None:
            receiver.taking = True
            self.side.around.sim.spawn(self.side.part, self._taking(channel))

    def _taking(self, channel: ChannelId) -> Steps:
        receiver = self.held.receivers[channel]
        more = True
        while more:
            yield receiver.pause or 0.0
            more = not self.side.over and not receiver.over and self._take(channel)
        receiver.taking = False

    def _take(self, channel: ChannelId) -> bool:
        """Take a message; False when there is none."""
        found = self.side.machine.take(channel, self.side.now)
        if found is None:
            return False
        self.side.log(f"takes message {found.number} of {channel}")
        self._judge.taken(self.side.side, channel, found)
        for attached in found.attachments:
            self.gets(attached)
        self.side.follow()
        for attached in found.attachments:
            self.begins_with(attached)
        return True

    def room(self, channel: ChannelId) -> None:
        """A sender may go on."""
        sender = self.held.senders[channel]
        sender.waits = False
        if self.side.over or sender.over:
            return
        if self.leaving:
            self._end_sender(channel)
        elif self._random.random() < 0.7:
            self._send_one(channel)

    def ended(self, channel: ChannelId, half: Half) -> None:
        """An end of a channel has ended."""
        held = self.held.senders if half is Half.SENDER else self.held.receivers
        held[channel].over = True
        if channel in self.held.unattached:
            self.held.unattached.remove(channel)
