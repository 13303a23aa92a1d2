"""A room where everybody reads what the others write, over channels on QUIC (``docs/aqueduct.md``).

python examples/chat_room.py open --listen 127.0.0.1:7400 --certificate room.pem --key room.key
python examples/chat_room.py join Ann --room 127.0.0.1:7400 --ca room.pem

Who joins sends one message with its name, to which it attaches the sender of a channel for what the others write, and
the receiver of a channel for its own lines. So the room needs no names of channels, and a member whose network is slow
delays no other one. The room makes a certificate when the files are not there; it is its own authority, for a try-out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import ipaddress
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from wallaroo_spark import aqueduct


class Room:
    """The members, each with a sender of lines to it."""

    def __init__(self) -> None:
        self._members: dict[str, aqueduct.Sender] = {}

    async def member(self, connection: aqueduct.Connection) -> None:
        """One connection: a message with a name, then lines until the member leaves."""
        joined = await connection.requests.receive()
        if joined is None:
            return
        name = joined.payload.decode()
        lines = joined.attachments[1].receiver()
        self._members[name] = joined.attachments[0].sender()
        print(f"{name} is here", flush=True)
        await self._tell_others(name, f"{name} is here")
        try:
            async for line in lines:
                await self._tell_others(name, f"{name}: {line.payload.decode()}")
        finally:
            del self._members[name]
            await self._tell_others(name, f"{name} has left")

    async def _tell_others(self, name: str, line: str) -> None:
        for other, sender in list(self._members.items()):
            if other == name:
                continue
            # A member that has left is seen by its own task.
            with contextlib.suppress(aqueduct.ConnectionLost, aqueduct.ReceiverClosed):
                await sender.send(line.encode())


async def open_room(listen: str, certificate: Path, key: Path) -> None:
    """Listen until this is cancelled."""
    host, _, port = listen.rpartition(":")
    async with aqueduct.serve(Room().member, host, int(port), certificate=certificate, key=key) as server:
        print(f"listening on {server.address}", flush=True)
        await server.serve_forever()


async def join(name: str, room: str, ca: str) -> None:
    """Send the lines of standard input, and print those of the others, until the input ends."""
    async with aqueduct.connect(room, ca=ca) as connection:
        from_others, for_others = connection.channel()
        lines, for_lines = connection.channel("sender")
        await connection.entrypoint.send(name.encode(), attach=[for_others, for_lines])

        async def show() -> None:
            async for line in from_others:
                print(line.payload.decode(), flush=True)

        showing = asyncio.create_task(show())
        async with lines:
            while line := await asyncio.to_thread(sys.stdin.readline):
                await lines.send(line.rstrip("\n").encode())
        showing.cancel()


def make_certificate(host: str, certificate: Path, key: Path) -> None:
    """Write a certificate for ``host`` that is its own authority, and its key."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chat room")])
    now = datetime.datetime.now(datetime.UTC)
    try:
        named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        named = x509.DNSName(host)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([named]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    certificate.write_bytes(made.public_bytes(pem))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    opening = verbs.add_parser("open")
    opening.add_argument("--listen", default="127.0.0.1:7400")
    opening.add_argument("--certificate", type=Path, default=Path("room.pem"))
    opening.add_argument("--key", type=Path, default=Path("room.key"))
    joining = verbs.add_parser("join")
    joining.add_argument("name")
    joining.add_argument("--room", default="127.0.0.1:7400")
    joining.add_argument("--ca", default="room.pem")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if given.verb == "open":
            if not given.certificate.exists():
                make_certificate(given.listen.rpartition(":")[0], given.certificate, given.key)
            asyncio.run(open_room(given.listen, given.certificate, given.key))
        else:
            asyncio.run(join(given.name, given.room, given.ca))


if __name__ == "__main__":
    main()
