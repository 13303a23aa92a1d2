"""OpenTelemetry's own programs, as their builders make them: exporters of its SDKs, a Collector, and telemetrygen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from proving.producers import FOLDER, built_from
from proving.servers.packages.maven import fetched, java

HERE = Path(__file__).parent
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
GENERATOR = "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen"
JAVA_SDK = tuple(
    ("io.opentelemetry", name, "1.68.0", True) for name in ("opentelemetry-exporter-otlp", "opentelemetry-sdk")
)


def python_program() -> list[str]:
    """The beginning of the command line of the program with Python's SDK, which has the contract of producers."""
    return [sys.executable, "-m", "proving.producers.telemetry.python_exporter"]


def java_program() -> list[str]:
    """The beginning of the command line of the program with Java's SDK, which has the contract of producers."""
    jars = fetched("opentelemetry-java", *JAVA_SDK)
    folder = built_from(HERE / "java", FOLDER, ["javac", "-cp", f"{jars}/*", "-d", ".", "JavaExporter.java"])
    return [java(), "-cp", os.pathsep.join([str(folder), f"{jars}/*"]), "JavaExporter"]


def collector() -> str:
    """The program of a Collector."""
    folder = built_from(HERE / "collector", FOLDER, ["go", "run", BUILDER, "--config", "builder.yaml"])
    return str(folder / "built" / "collector")


def generator() -> str:
    """The program ``telemetrygen`` of the Collector's contributions, which has a command line of its own."""
    steps = (["go", "mod", "tidy"], ["go", "build", "-o", "telemetrygen", GENERATOR])
    return str(built_from(HERE / "generator", FOLDER, *steps) / "telemetrygen")


def collector_program() -> list[str]:
    """The beginning of the command line of the program that sends through a Collector, with the same contract."""
    return [*python_program(), "--collector", collector()]
