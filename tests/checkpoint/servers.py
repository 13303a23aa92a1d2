"""A place for checkpoints that is not this machine's disk: an HDFS of the test run's own.

``python -m tests.checkpoint.servers`` fetches what it needs ahead.
"""

from __future__ import annotations

from pathlib import Path

from tests.maven import fetched, hadoop_version, jars_of_spark, java
from tests.sinks.servers.guard import Guarded, free_ports

_JAVA = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_CLUSTER = "org.apache.hadoop.test.MiniDFSClusterManager"


class HdfsServer:
    """A name node and a data node in one process, on free ports of the loopback."""

    def __init__(self) -> None:
        jars = cluster_jars()
        self._guard = Guarded("hdfs")
        port, web = free_ports(2)
        self.settings = {"spark.hadoop.fs.defaultFS": f"hdfs://127.0.0.1:{port}"}
        """What Spark is to know."""
        self.root = f"hdfs://127.0.0.1:{port}"
        self._ready = self._guard.directory / "ready.xml"
        classes = f"{jars}/*:{jars_of_spark()}/*"
        where = ["-nnport", str(port), "-httpport", str(web), "-datanodes", "1", "-writeConfig", str(self._ready)]
        self._command = [java(), *_JAVA, "-cp", classes, _CLUSTER, "-format", *where]
        self._command += ["-D", f"hdfs.minidfs.basedir={self._guard.directory}/data"]

    def start(self) -> None:
        """Start it, and wait until there is a data node."""
        self._guard.start(self._command, self._ready.exists, 120)

    def remove(self) -> None:
        """End it, and remove what it has."""
        self._guard.remove()


def cluster_jars() -> Path:
    """Hadoop's cluster for tests, in the version of PySpark's Hadoop."""
    return fetched("hdfs", ("org.apache.hadoop", "hadoop-client-minicluster", hadoop_version(), False))


if __name__ == "__main__":
    cluster_jars()
