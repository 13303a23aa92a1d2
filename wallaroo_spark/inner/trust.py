"""What callers of a worker's inner port show each other: certificates of the fleet's own, made from its token.

Arrow's server takes in a whole message, of any length, before anything of ours is asked whether its sender has the
token. TLS asks first: both ends show a certificate that is signed with a key derived from the token, so that who has no
token is turned away in the handshake, before a single message. Nothing has to be handed out beside the token. Within
one machine a socket in a directory of the workers' user does the same, for half the CPU time that TCP takes.
Source: ``docs/decisions/flight.md``.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

NAME = "worker.wallaroo.internal"
"""The host that a worker's own certificate names: it is known by its fleet, and not by its address."""

_STATUS = "status-"
_LONGEST_PATH = 100
"""A little less than the name of a socket may be long."""
_SALT = b"wallaroo-spark: the inner port of a fleet"
# Scrypt in some 50 ms: whoever sees a certificate must not be able to guess a poor token from it by trying.
_COST, _BLOCK, _LANES = 1 << 14, 8, 1
# The order of the curve P-256; a private key is a number below it, and not 0.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class FleetKeys:
    """PEM texts: the fleet's ``authority``, and a ``certificate`` signed by it, with its ``key``."""

    authority: bytes
    """The certificate of the fleet's own authority; both ends of a call verify the other's certificate with it."""
    certificate: bytes
    """The certificate that workers and callers show."""
    key: bytes = field(repr=False)
    """The private key of ``certificate``, unencrypted."""


def status_token(token: str) -> str:
    """What may be shown to whoever may see a fleet's status: it comes of the fleet's token, which it does not tell."""
    return _STATUS + hmac.new(token.encode(), b"wallaroo: status", "sha256").hexdigest()


def local_socket(address: str, token: str) -> Path | None:
    """Where the worker at an inner address listens on its own machine, for its own user; None where that cannot be.

    The name tells neither, and no two workers have the same one.
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
    """The secret that the holders of either token have in common."""
    return (token if token.startswith(_STATUS) else status_token(token)).encode()


@functools.lru_cache(maxsize=8)
def fleet_keys(token: str) -> FleetKeys:
    """The keys of the fleet with this token, or with this token for its status."""
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
