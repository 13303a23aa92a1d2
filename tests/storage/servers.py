"""Places for checkpoints that are not on this machine's disk: an HDFS and an S3 server of the test run's own.

``python -m tests.storage.servers`` fetches what they need ahead.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from proving.servers.guard import Guarded
from proving.servers.hadoop import LIGHT, cluster_jars
from proving.servers.packages.maven import fetched, hadoop_version, jars_of_spark, java
from wallaroo_spark.registry.embedded import lasting_port

_CLUSTER = "org.apache.hadoop.test.MiniDFSClusterManager"
AWS_SDK, ANALYTICS = "2.35.4", "1.3.1"
"""The versions that Hadoop's module for S3 was built with."""
# Spark has these in versions of its own; those of Amazon's SDK, before them, keep Spark from starting.
_SPARK_S = ("io.netty", "org.slf4j", "org.apache.httpcomponents", "commons-logging", "commons-codec")
KEY, SECRET, BUCKET, REGION = "sesame", "open-mellon", "orders", "us-east-1"


class HdfsServer:
    """A name node and a data node in one process, on free ports of the loopback."""

    def __init__(self) -> None:
        jars = cluster_jars()
        self._guard = Guarded("hdfs")
        port = lasting_port(range(2))
        web = port + 1
        self.settings = {"spark.hadoop.fs.defaultFS": f"hdfs://127.0.0.1:{port}"}
        """The settings of Spark."""
        self.checkpoint = "/checkpoints/orders"
        """A checkpoint there, as a query is told of it."""
        self.shown = f"hdfs://127.0.0.1:{port}{self.checkpoint}"
        """The same as a receiver shows it."""
        self.variables: dict[str, str] = {}
        """A driver's environment."""
        self._ready = self._guard.directory / "ready.xml"
        classes = f"{jars}/*:{jars_of_spark()}/*"
        where = ["-nnport", str(port), "-httpport", str(web), "-datanodes", "1", "-writeConfig", str(self._ready)]
        self._command = [java(), "-Xmx256m", "-Xms64m", *LIGHT, "-cp", classes, _CLUSTER, "-format", *where]
        self._command += ["-D", f"hdfs.minidfs.basedir={self._guard.directory}/data"]

    def start(self) -> None:
        """Start it, and wait until there is a data node."""
        self._guard.start(self._command, self._ready.exists)

    def remove(self) -> None:
        """End it, and delete its files."""
        self._guard.remove()


class S3Server:
    """Moto's S3, in memory, with one bucket."""

    def __init__(self) -> None:
        pytest.importorskip("moto", reason="the S3 server is moto's: pip install 'moto[s3]' flask flask-cors")
        self._guard = Guarded("s3")
        self._port = lasting_port()
        self.address = f"127.0.0.1:{self._port}"
        self.checkpoint = f"s3a://{BUCKET}/checkpoints/orders"
        self.shown = self.checkpoint.replace("s3a:", "s3:")
        self.settings = {
            "spark.hadoop.fs.s3a.endpoint": f"http://{self.address}",
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            f"spark.hadoop.fs.s3a.bucket.{BUCKET}.access.key": KEY,
            f"spark.hadoop.fs.s3a.bucket.{BUCKET}.secret.key": SECRET,
        }

    @property
    def variables(self) -> dict[str, str]:
        """A driver's environment: jars behind Spark's own, and no credentials."""
        return {
            **{name: "" for name in os.environ if name.startswith("AWS_")},
            "SPARK_DIST_CLASSPATH": f"{s3a_jars()}/*",
        }

    def start(self) -> None:
        """Start it, and make the bucket."""
        command = [sys.executable, "-m", "tests.storage.moto_server", str(self._port)]
        self._guard.start(command, self._answers)
        import boto3

        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
        boto3.client("s3", endpoint_url=f"http://{self.address}", **keys).create_bucket(Bucket=BUCKET)

    def remove(self) -> None:
        """End it."""
        self._guard.remove()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def s3a_jars() -> Path:
    """Hadoop's file system for S3, in the version of PySpark's Hadoop, and the part of Amazon's SDK that it needs."""
    sdk = [("software.amazon.awssdk", name, AWS_SDK, True) for name in ("s3", "s3-transfer-manager", "sts")]
    analytics = ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", ANALYTICS, False)
    hadoop = ("org.apache.hadoop", "hadoop-aws", hadoop_version(), False)
    return fetched("s3a", hadoop, *sdk, analytics, without=_SPARK_S)


if __name__ == "__main__":
    cluster_jars()
    s3a_jars()
