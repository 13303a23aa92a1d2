"""TLS contexts, and the errors for files that cannot be used."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.pems import Pems
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport import client_context, server_context


def test_nothing_older_than_tls_1_2_is_spoken(pems: Pems) -> None:
    for context in (server_context(pems.server, pems.server_key), client_context(pems.ca), client_context()):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_server_asks_for_certificates_only_when_it_has_an_authority(pems: Pems) -> None:
    assert server_context(pems.server, pems.server_key).verify_mode == ssl.CERT_NONE
    assert server_context(pems.server, pems.server_key, pems.ca).verify_mode == ssl.CERT_REQUIRED


def test_a_client_always_verifies_the_host(pems: Pems) -> None:
    for context in (client_context(), client_context(pems.ca)):
        assert context.check_hostname
        assert context.verify_mode == ssl.CERT_REQUIRED


def test_a_key_may_live_in_the_certificates_file(pems: Pems, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(Path(pems.server).read_bytes() + Path(pems.server_key).read_bytes())
    assert isinstance(server_context(str(both), ""), ssl.SSLContext)


def test_a_missing_file_is_named(pems: Pems, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    for make in (
        lambda: server_context(missing, pems.server_key),
        lambda: server_context(pems.server, missing),
        lambda: server_context(pems.server, pems.server_key, missing),
        lambda: client_context(missing),
        lambda: client_context(pems.ca, missing),
    ):
        with pytest.raises(ConfigurationError, match=r"none\.pem cannot be read: No such file"):
            make()


def test_no_file_at_all_is_said(pems: Pems) -> None:
    with pytest.raises(ConfigurationError, match="TLS certificate: the path is empty"):
        server_context("", pems.server_key)


def test_a_key_of_another_certificate_is_refused(pems: Pems) -> None:
    with pytest.raises(ConfigurationError, match=r"server\.pem and key .*client\.key cannot be used: .*mismatch"):
        server_context(pems.server, pems.client_key)


def test_a_file_that_is_not_pem_is_named(pems: Pems, tmp_path: Path) -> None:
    words = tmp_path / "words.pem"
    words.write_text("just words\n")
    with pytest.raises(ConfigurationError, match=r"words\.pem .*cannot be used"):
        server_context(str(words), pems.server_key)
    with pytest.raises(ConfigurationError, match=r"words\.pem cannot be used"):
        client_context(str(words))


def test_a_key_without_a_certificate_is_refused(pems: Pems) -> None:
    with pytest.raises(ConfigurationError, match="has no certificate"):
        client_context(pems.ca, "", pems.client_key)


def test_an_encrypted_key_is_refused_and_no_password_asked_for(pems: Pems, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(Path(pems.server_key).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"sesame"),
        )
    )
    with pytest.raises(ConfigurationError, match="must not be encrypted"):
        server_context(pems.server, str(locked))
