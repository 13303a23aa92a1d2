"""Certificates of a temporary authority, and those of another authority, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pems:
    """Paths of PEM files: an authority, a server's and a client's certificate, and certificates that must be refused.

    The server is ``localhost``, the client ``shop-1``. The client ``forged`` has the same name, from another authority.
    """

    ca: str
    other_ca: str
    server: str
    server_key: str
    client: str
    client_key: str
    forged: str
    forged_key: str


def make_pems(folder: Path) -> Pems:
    """Issue all of them anew, into a folder."""
    authority, stranger = trustme.CA(), trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1", "::1")
    client = authority.issue_cert("shop-1.example", common_name="shop-1")
    forged = stranger.issue_cert("shop-1.example", common_name="shop-1")

    def put(name: str, blob: trustme.Blob) -> str:
        path = folder / name
        blob.write_to_path(str(path))
        return str(path)

    return Pems(
        ca=put("ca.pem", authority.cert_pem),
        other_ca=put("other-ca.pem", stranger.cert_pem),
        server=put("server.pem", server.cert_chain_pems[0]),
        server_key=put("server.key", server.private_key_pem),
        client=put("client.pem", client.cert_chain_pems[0]),
        client_key=put("client.key", client.private_key_pem),
        forged=put("forged.pem", forged.cert_chain_pems[0]),
        forged_key=put("forged.key", forged.private_key_pem),
    )
