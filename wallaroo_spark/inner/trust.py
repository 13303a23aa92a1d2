"""The certificates of a worker's inner port and its callers, made from the fleet's token, and its local socket.

Arrow's server receives a whole message, of any length, before our code can check whether the sender has the token. TLS
checks it earlier: both ends present a certificate that is signed with a key derived from the token, so a caller without
the token fails in the handshake and cannot send a message. Nobody has to distribute anything but the token. Within one
machine, a socket in a folder that only the workers' user can open has the same effect, and takes half the CPU time of
TCP. Source: ``docs/decisions/flight.md``.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import os
import re
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

NAME = "worker.wallaroo.internal"
"""The host name in the certificate that is made from the token. It identifies the fleet, not the worker's address."""

_STATUS = "status-"
_TAP = "tap-"
_TAP_TOKEN = re.compile(r"tap-[0-9a-f]{64}\.(status-[0-9a-f]{64})")
_LONGEST_PATH = 100
"""Most bytes of a socket's path. Systems allow a few more: 104 and above."""
_SALT = b"wallaroo-spark: the inner port of a fleet"
# With these values scrypt takes about 50 ms, so that a weak token cannot be found from a certificate by trying many.
_COST, _BLOCK, _LANES = 1 << 14, 8, 1
# The order of the curve P-256: a private key is a number from 1 to one less than this.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class FleetKeys:
    """The certificates of a fleet and a private key, as PEM texts."""

    authority: bytes
    """The certificate of the fleet's own authority; both ends of a call verify the other's certificate with it."""
    certificate: bytes
    """The certificate that workers and callers present; the authority has signed it."""
    key: bytes = field(repr=False)
    """The private key of ``certificate``, unencrypted."""


def status_token(token: str) -> str:
    """The token for callers that may only see a fleet's status. It is derived from the fleet's token and does not
    reveal it.
    """
    return _STATUS + hmac.new(token.encode(), b"wallaroo: status", "sha256").hexdigest()


def tap_token(token: str) -> str:
    """The token for callers that may see a fleet's status and samples of its messages, and may do nothing else.

    It is derived from the fleet's token and does not reveal it.
    """
    return f"{_TAP}{hmac.new(token.encode(), b'wallaroo: tap', 'sha256').hexdigest()}.{status_token(token)}"


def local_socket(address: str, token: str) -> Path | None:
    """The path of the local socket of the worker with this inner address; None where there can be no such socket.

    Only the worker's user can open the folder. The name of the socket reveals neither address nor token, and is
    different for each worker.
    """
    folder = Path(tempfile.gettempdir(), f"wallaroo-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return None
    path = folder / hmac.new(_known(token), address.encode(), "sha256").hexdigest()[:24]
    return path if len(os.fsencode(path)) <= _LONGEST_PATH else None


def _known(token: str) -> bytes:
    """The secret that holders of the fleet's token and holders of the status token share."""
    if tap := _TAP_TOKEN.fullmatch(token):
        return tap[1].encode()
    return (token if token.startswith(_STATUS) else status_token(token)).encode()


@functools.lru_cache(maxsize=8)
def fleet_keys(token: str) -> FleetKeys:
    """The keys of the fleet with this token; ``token`` may also be its status token."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = hashlib.scrypt(_known(token), salt=_SALT, n=_COST, r=_BLOCK, p=_LANES, dklen=48)
    authority_key = ec.derive_private_key(int.from_bytes(secret) % (_ORDER - 1) + 1, ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    fleet = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "wallaroo-spark fleet")])
    worker = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, more: list[x509.ExtensionType]) -> bytes:
        builder = x509.CertificateBuilder(fleet, subject, public, x509.random_serial_number(), _FROM, _UNTIL)
        for extension in more:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    names = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    return FleetKeys(
        signed(fleet, authority_key.public_key(), [x509.BasicConstraints(ca=True, path_length=0)]),
        signed(worker, key.public_key(), [x509.BasicConstraints(ca=False, path_length=None), names]),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
