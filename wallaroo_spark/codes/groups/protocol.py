"""Codes of violations of the protocols.

A worker counts them, shows them as the reason of a refused connection, and sends the sentence without the code in an
ERROR frame. A program that uses the SDK sees them for its own calls, too.
"""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

_FRAMES = "docs/protocol.md#framing"
_BODIES = "docs/protocol.md#frame-bodies"
_SESSION = "docs/protocol.md#session-states"
_STREAMS = "docs/protocol.md#stream-states"
_REASONS = "docs/protocol.md#reasons-that-a-connector-may-act-on"
_COMPARE = (
    "Compare the connector's frames with the page; `wallaroo-spark capture` records them and `wallaroo-spark decode` "
    "prints them with each mistake."
)

PROTOCOL = CodeGroup(
    "The protocol",
    "Kinds of violations, as in a worker's log, its metrics and its refused connections. The ERROR frame that the peer "
    "receives has the sentence without the code.",
    (
        CodeEntry(
            "not-this-protocol",
            "The first bytes of a connection are not the start of a HELLO.",
            "Another program connects: a port scan, a health check, a browser, or a connector with TLS to a port "
            "without.",
            "Check the peer's address in the log. For health checks use `/healthz`.",
            _FRAMES,
        ),
        CodeEntry(
            "frame-too-long",
            "A frame is longer than `maxFrameBytes`.",
            "A payload is larger than the limit, or the length field is wrong or in the wrong byte order.",
            "Split the payload, or raise `maxFrameBytes` at the receiver and in the connector.",
            "docs/protocol.md#limits",
        ),
        CodeEntry(
            "empty-frame",
            "A frame of length 0 is announced.",
            "The length counts the tag, so it is at least 1.",
            _COMPARE,
            _FRAMES,
        ),
        CodeEntry(
            "unknown-tag",
            "A frame has a tag that the revision does not have.",
            "The connector speaks another revision than its HELLO says, or its frames are not aligned.",
            _COMPARE,
            _BODIES,
        ),
        CodeEntry(
            "truncated-frame",
            "A frame ends within its fields, or the connection ends within a frame.",
            "The length or the layout is wrong, or the connector was ended while it was sending.",
            "After the death of a connector nothing has to be done. Otherwise: " + _COMPARE[0].lower() + _COMPARE[1:],
            _BODIES,
        ),
        CodeEntry(
            "overlong-frame",
            "A frame has more bytes than its fields.",
            "The length or the layout of the body is wrong.",
            _COMPARE,
            _BODIES,
        ),
        CodeEntry(
            "invalid-text",
            "A text in a frame is not UTF-8, or a field is not of its form.",
            "The encoding of the text or the layout of the body is wrong.",
            _COMPARE,
            _BODIES,
        ),
        CodeEntry(
            "value-does-not-fit",
            "A value does not fit its field of a frame.",
            "It is negative, too large for its bytes, or a text of more than 65,535 bytes.",
            "Give a smaller value.",
            _BODIES,
        ),
        CodeEntry(
            "not-in-revision",
            "This revision of the protocol does not have what was asked for.",
            "For example keys in draft-le, flags in v3, or a revision that does not exist.",
            "Leave it out, or use a revision that has it.",
            _BODIES,
        ),
        CodeEntry(
            "wrong-version",
            "The version in HELLO is not the receiver's.",
            "Connector and receiver are set to different values of the option `version`.",
            "Give both the same version.",
            _REASONS,
        ),
        CodeEntry(
            "wrong-program",
            "The receiver's option `programs` does not list the program in HELLO.",
            "The connector names another program, or the list lacks it.",
            "Give the connector a listed name, or add its name to `programs`.",
            _REASONS,
        ),
        CodeEntry(
            "bad-instance",
            "The instance name in HELLO is not permitted.",
            "An instance name has 1 to 255 bytes of UTF-8.",
            "Give the connector another instance name.",
            _REASONS,
        ),
        CodeEntry(
            "wrong-certificate",
            "The connector's TLS certificate does not name its instance.",
            "With `tls.bindInstances` a certificate entitles to the instances that it names.",
            "Issue a certificate with the instance's name, or correct the name.",
            _REASONS,
        ),
        CodeEntry(
            "wrong-state",
            "A frame or a call does not fit the state of the session.",
            "For example a MESSAGE before OK, or a second HELLO.",
            _COMPARE,
            _SESSION,
        ),
        CodeEntry(
            "wrong-side",
            "A frame was sent that only the other side sends.",
            "A connector has sent a worker's frame, or the other way round.",
            _COMPARE,
            _SESSION,
        ),
        CodeEntry(
            "reserved-flag",
            "A MESSAGE has a flag that the revision does not have.",
            "The order of the fields is wrong, or another revision is meant.",
            _COMPARE,
            _BODIES,
        ),
        CodeEntry(
            "boundary-payload",
            "A BOUNDARY message has a payload.",
            "A BOUNDARY marks a place in a stream and carries nothing.",
            "Send the payload as a message of its own; check the order of the fields.",
            _BODIES,
        ),
        CodeEntry(
            "stream-not-open",
            "A MESSAGE came for a stream that is not open.",
            "NOTIFY opens a stream; after EOS, or after a new session, it has to be opened again.",
            "Send NOTIFY first, and wait for its answer in the revisions that have one.",
            _STREAMS,
        ),
        CodeEntry(
            "stream-already-open",
            "A stream is opened that is open already, or whose id or name another open stream has.",
            "Two streams of one connector share an id, or NOTIFY was sent twice.",
            "End the other stream and wait until it is flushed, or give this one an id of its own.",
            _STREAMS,
        ),
        CodeEntry(
            "too-many-streams",
            "A session or a worker has as many open streams as it may have.",
            "Each open stream costs memory in the worker, so their number is limited.",
            "End streams that are complete, use several connector instances, or raise `memoryBudget`.",
            "docs/protocol.md#limits",
        ),
        CodeEntry(
            "name-too-long",
            "The name of a stream or of a subscriber is too long.",
            "A stream name has at most 1,024 bytes of UTF-8.",
            "Shorten it.",
            "docs/protocol.md#limits",
        ),
        CodeEntry(
            "no-credit",
            "Messages were sent without credits.",
            "Each MESSAGE takes a credit, and only ACK frames give new ones.",
            "Count credits as the page says, and wait for an ACK at zero.",
            "docs/protocol.md#credits",
        ),
        CodeEntry(
            "mixed-ephemeral",
            "A stream has EPHEMERAL and other messages.",
            "A stream is EPHEMERAL as a whole or not at all, until its messages are committed.",
            "Use two streams.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "ids-not-increasing",
            "A message id is not above the one before it.",
            "With `messageIds=increasing` ids increase from one NOTIFY to the next, because the worker recognises "
            "replays by them.",
            "Continue behind the stream's reference with ids that increase; `messageIds=opaque` suits a draft "
            "connector whose ids have no order.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "replay-differs",
            "Messages were sent again, and are not the ones that were sent before.",
            "With `messageIds=opaque` a replay repeats the same ids in the same order.",
            "Replay the messages unchanged, from the reference in the answer to NOTIFY.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "handshake-timeout",
            "HELLO was not complete within `handshakeTimeout`.",
            "The length field is wrong, the network is slow, or the peer is not a connector.",
            "Check the length field of HELLO; raise `handshakeTimeout` for slow networks.",
            "docs/protocol.md#limits",
        ),
        CodeEntry(
            "peer-never-reads",
            "A connector does not read its socket.",
            "The frames of the worker wait in a bounded queue, which is full.",
            "Read the socket also while sending; look whether the connector's process hangs.",
            "docs/protocol.md#limits",
        ),
        CodeEntry(
            "superseded",
            "A newer session of the same instance has taken the place of this one.",
            "Another program runs under this instance name, or the same program has connected again.",
            "Give each program an instance name of its own. After a reconnection of the same program nothing has to "
            "be done.",
            _REASONS,
        ),
        CodeEntry(
            "wrong-offset",
            "A row for a sink does not begin where the sink's output ends.",
            "The query's log and the sink's output have different lengths: another query has the same sink name, or "
            "one of the two was restored from an older copy.",
            'Use another `name=`, restore both together, or set `start="sink"` to continue behind the sink\'s rows.',
            "docs/protocol.md#sinks",
        ),
        CodeEntry(
            "wrong-phase",
            "A sink has received rows between a PHASE1 and its PHASE2.",
            "A session has one transaction at a time.",
            _COMPARE,
            "docs/protocol.md#sinks",
        ),
        CodeEntry(
            "worker-full",
            "A worker has as many connections as it may have, or is leaving.",
            "`maxSessions` is reached, or the open files that its process may have. The connector is asked to come "
            "back.",
            "Nothing has to be done for a short time. Otherwise add workers, raise `maxSessions`, or raise the hard "
            "limit of open files (`ulimit -Hn`).",
            "docs/protocol.md#limits",
        ),
    ),
)
