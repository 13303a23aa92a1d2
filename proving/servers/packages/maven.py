"""Jars from Maven that only tests need; the Ivy among Spark's jars fetches them once per clone."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FETCH_SECONDS = 240

_MODULE = """\
<ivy-module version="2.0">
  <info organisation="tests" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}{excludes}</dependencies>
</ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" transitive="{}" conf="default->master{}"/>'
_EXCLUDE = '<exclude org="{}" module="*" artifact="*" type="*" ext="*" matcher="exact" conf="*"/>'


def jars_of_spark() -> Path:
    """The folder with PySpark's own jars."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"


def hadoop_version() -> str:
    """The version of the Hadoop among PySpark's jars."""
    (jar,) = jars_of_spark().glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def java() -> str:
    """The path of Java, found as Spark's launcher finds it."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def fetched(name: str, *artifacts: tuple[str, str, str, bool], without: Sequence[str] = ()) -> Path:
    """A folder with these jars: organisation, name, version, and whether to fetch the jar's dependencies.

    Dependencies of an organisation in ``without`` are left out. Skips the test when the jars cannot be fetched.
    """
    folder = ROOT / "build" / name / artifacts[0][2]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(name, folder, artifacts, without)
    return folder


def _fetch(name: str, folder: Path, artifacts: Sequence[tuple[str, str, str, bool]], without: Sequence[str]) -> None:
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    part.mkdir()
    module = part / "ivy.xml"
    lines = [
        _DEPENDENCY.format(organisation, artifact, version, str(deep).lower(), ",runtime" if deep else "")
        for organisation, artifact, version, deep in artifacts
    ]
    excludes = "".join(_EXCLUDE.format(organisation) for organisation in without)
    module.write_text(_MODULE.format(name=name, dependencies="".join(lines), excludes=excludes))
    cache = folder.parent / "ivy"
    # It runs for seconds, so a quick compiler and one thread for garbage cost least.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars_of_spark()}/*"]
    ivy = [java(), *options, "org.apache.ivy.Main", "-cache", str(cache)]
    where = ["-types", "jar", "bundle", "-retrieve", f"{part}/[artifact]-[revision](-[classifier]).[ext]"]
    command = [*ivy, "-ivy", str(module), "-confs", "default", *where]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    if done.returncode or not all(any(part.glob(f"{artifact}-*.jar")) for _, artifact, _, _ in artifacts):
        shutil.rmtree(part, ignore_errors=True)
        pytest.skip(f"{name} cannot be fetched from Maven: {done.stdout[-500:]}{done.stderr[-500:]}")
    part.rename(folder)
    shutil.rmtree(cache, ignore_errors=True)
