"""TLS contexts from PEM files. TLS 1.2 or newer; each side with an authority verifies its peer's certificate."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from wallaroo_spark.errors import ConfigurationError


def server_context(certificate: str, key: str, ca: str = "") -> ssl.SSLContext:
    """A worker's context. With ``ca`` every peer must present a certificate of that authority.

    All three are paths of PEM files; with an empty ``key`` the key is in the certificate's file. Raises
    :class:`ConfigurationError` with the path of the unusable file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, certificate, key)
    if ca:
        _load_authority(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """A connector's context. It verifies the worker's certificate and host name with ``ca`` or the system's store.

    ``certificate`` and ``key`` are presented when the worker requests them. All are paths of PEM files. Raises
    :class:`ConfigurationError` with the path of the unusable file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        _load_authority(context, ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if certificate:
        _load_chain(context, certificate, key)
    elif key:
        raise _unusable(f"TLS key {key} has no certificate; give the certificate's file too", key)
    return context


def read_authority(ca: str) -> bytes:
    """Read a PEM file of certificates, for libraries that take its bytes. Raises :class:`ConfigurationError`."""
    _load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca)
    return Path(ca).read_bytes()


def read_pair(certificate: str, key: str) -> tuple[bytes, bytes]:
    """Read a PEM certificate chain and its key, for libraries that take their bytes.

    The files and errors are those of :func:`server_context`.
    """
    server_context(certificate, key)
    return Path(certificate).read_bytes(), Path(key or certificate).read_bytes()


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _readable("certificate", certificate)
    if key:
        _readable("key", key)
    try:
        # An empty password keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(certificate, key or None, password="")
    except (ssl.SSLError, ValueError) as error:
        raise _unusable(
            f"TLS certificate {certificate} and key {key or certificate} cannot be used: {_why(error)}; "
            "both must be PEM, belong together, and the key must not be encrypted",
            certificate,
        ) from error


def _load_authority(context: ssl.SSLContext, ca: str) -> None:
    _readable("authority", ca)
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        problem = f"TLS authority {ca} cannot be used: {_why(error)}; it must be a PEM file of certificates"
        raise _unusable(problem, ca) from error


def _readable(name: str, path: str) -> None:
    if not path:
        raise _unusable(f"TLS {name}: the path is empty; give the path of a PEM file", path)
    try:
        Path(path).open("rb").close()
    except OSError as error:
        problem = f"TLS {name} {path} cannot be read: {error.strerror}; check the path and its permissions"
        raise _unusable(problem, path) from error


def _unusable(problem: str, path: str) -> ConfigurationError:
    return ConfigurationError(problem, code="tls-files", path=path)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def received_close_notify(tls: ssl.SSLObject) -> bool:
    """Whether the peer has ended the TLS session itself. An end of the TCP connection alone can be forged."""
    try:
        return not tls.read(1)
    except ssl.SSLZeroReturnError:
        return True
    except ssl.SSLError:
        return False


def names_in(certificate: Any) -> tuple[str, ...]:
    """The common name, then the alternative names, without duplicates."""
    if not certificate:
        return ()
    subject = [value for group in certificate.get("subject", ()) for name, value in group if name == "commonName"]
    alternatives = [value for _, value in certificate.get("subjectAltName", ())]
    return tuple(dict.fromkeys([*subject, *alternatives]))
