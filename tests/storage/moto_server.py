"""Moto's S3 on the loopback: ``python -m tests.storage.moto_server PORT``.

Moto's own program answers ``Expect: 100-continue`` twice: Python's HTTP server does it, and werkzeug does it again.
Amazon's asynchronous client, with which s3a copies files of the state store, takes the second answer for the reply.
"""

from __future__ import annotations

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class OneContinue(MotoRequestHandler):
    """Leaves the interim answer to werkzeug."""

    def handle_expect_100(self) -> bool:
        return True


if __name__ == "__main__":
    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=OneContinue)
