"""An S3 server for one test run, of a Go module: VersityGW, whose objects are files of a folder.

``python -m proving.servers.versitygw`` builds it in advance; that takes two minutes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from proving.servers.guard import Guarded, GuardedServer
from proving.servers.packages.maven import ROOT
from wallaroo_spark.registry.embedded import lasting_port

MODULE, VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
BUILD_SECONDS = 900
KEY, SECRET, REGION = "sesame", "open-mellon", "us-east-1"


class S3Gateway(GuardedServer):
    """A server on a free port of the loopback."""

    def __init__(self) -> None:
        program = built()
        self._guard = Guarded("versitygw")
        self.port = lasting_port()
        files, facts = self._guard.directory / "files", self._guard.directory / "facts"
        files.mkdir()
        facts.mkdir()
        access = ["--access", KEY, "--secret", SECRET, "--region", REGION]
        where = ["posix", "--sidecar", str(facts), str(files)]
        self._command = [str(program), "--port", f"127.0.0.1:{self.port}", *access, *where]

    @property
    def url(self) -> str:
        """Its address in the form that clients take."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which clients find its credentials."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}

    def client(self) -> Any:
        """A client."""
        import boto3

        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
        return boto3.client("s3", endpoint_url=self.url, **keys)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def built() -> Path:
    """The program, built once per clone; skips the test where there is no Go."""
    folder = ROOT / "build" / "versitygw" / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "versitygw"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            go = shutil.which("go") or pytest.skip("VersityGW is built by Go, which is not on the PATH")
            done = subprocess.run(
                [go, "install", f"{MODULE}@{VERSION}"],
                env=os.environ | {"GOBIN": str(folder), "GOFLAGS": ""},
                capture_output=True,
                text=True,
                check=False,
                timeout=BUILD_SECONDS,
            )
            if done.returncode:
                pytest.skip(f"VersityGW cannot be built: {done.stderr[-500:]}")
    return program


if __name__ == "__main__":
    built()
