"""Common parts of the tests of all listening ports: guessed keys, the trust of a context, and the text of an error."""

from __future__ import annotations

import pickle
import ssl
import traceback

from tests.pems import Pems
from tests.worker.running import COOKIE, TOKEN
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.options import Options

GUESS = "an-1dle-guess"


def secrets_of(password: str) -> list[str]:
    """The texts that must not occur anywhere: the keys and the guessed keys."""
    assert password
    return [COOKIE, TOKEN, password, GUESS, "PRIVATE KEY"]


def trusting(ca: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """A connector's context, as any program would make it."""
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def sealing(pems: Pems) -> Options:
    """The options of a fleet whose workers speak TLS, verified by their own authority."""
    return Options(tls_certificate=pems.server, tls_key=pems.server_key, tls_workers_ca=pems.ca)


def told(error: BaseException) -> str:
    """All that an error shows, wherever it is shown, also after it has travelled."""
    texts = [repr(error), *traceback.format_exception(error)]
    if isinstance(error, WallarooError):
        texts += [repr(error.fields), str(pickle.loads(pickle.dumps(error)))]
    return "\n".join(texts)
