"""The Python code of the gRPC interface is the one that ./scripts/api writes from its .proto files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "wallaroo_spark" / "api"


def test_the_generated_code_is_of_the_present_proto_files(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "api", tmp_path], env=environment, check=True, timeout=SECONDS)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    present = {
        path.name: path.read_text(encoding="utf-8") for path in API.iterdir() if "_pb2" in path.name and path.is_file()
    }
    assert sorted(written) == sorted(present)
    assert [name for name in written if written[name] != present[name]] == [], "run ./scripts/api and commit its files"
