"""TLS of a gateway, from PEM files that may be replaced while it runs: as a server, and towards the other gateways."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.transport.tls import read_authority, read_pair

log = one_line("wallaroo_spark.gateway")


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a gateway."""

    certificate: str = ""
    """The certificate chain; empty: no TLS."""
    key: str = ""
    """Its key; empty: it is in the certificate's file."""
    ca: str = ""
    """The authority of clients' certificates; empty: clients need none."""

    def server(self) -> Any:
        """The credentials of a server, which reads the files again when they have changed.

        Raises :class:`ConfigurationError` for files that cannot be used.
        """
        return _Reloaded(self).credentials()

    def channel(self) -> Any:
        """The credentials of a channel to another gateway of the application, from the files as they are now.

        The other gateway has the same settings: the authority of its certificate may be in the chain, it may be that of
        the clients, or one that this machine trusts; or its certificate is the same. This one's own is presented.
        """
        chain, key = read_pair(self.certificate, self.key)
        trusted = [chain, *([read_authority(self.ca)] if self.ca else []), _of_this_machine()]
        return grpc.ssl_channel_credentials(b"\n".join(trusted), key, chain)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file is replaced. Raises OSError."""
        states = [Path(path).stat() for path in (self.certificate, self.key, self.ca) if path]
        return tuple((state.st_mtime_ns, state.st_ino, state.st_size) for state in states)


NO_TLS = TlsFiles()


class _Reloaded:
    """Gives gRPC the certificate of each handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = files.stamp() if _exist(files) else ()
        self._first = self._read()

    def credentials(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(
            self._first, self._changed, require_client_authentication=bool(self._files.ca)
        )

    def _read(self) -> Any:
        chain, key = read_pair(self._files.certificate, self._files.key)
        authority = read_authority(self._files.ca) if self._files.ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authority)

    def _changed(self) -> Any:
        """The new certificate; None while it is the same, or while the files are being replaced."""
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return None
            found = self._read()
        except (OSError, ConfigurationError) as error:
            log.warning("the replaced TLS files cannot be used, and connections get the earlier ones: %s", error)
            return None
        self._stamp = stamp
        log.info("TLS certificate %s was replaced, and new connections get it", self._files.certificate)
        return found


def _exist(files: TlsFiles) -> bool:
    return all(Path(path).exists() for path in (files.certificate, files.key, files.ca) if path)


def _of_this_machine() -> bytes:
    """The authorities that this machine trusts."""
    context = ssl.create_default_context()
    return "\n".join(ssl.DER_cert_to_PEM_cert(one) for one in context.get_ca_certs(binary_form=True)).encode()
