"""Hadoop's clusters for tests, HDFS and YARN, in one process of Java whose node managers start real containers."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import IO, Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from proving.servers.guard import ServerFailed
from proving.servers.packages.maven import fetched, hadoop_version, jars_of_spark, java

_BESIDE = (
    ("org.junit.jupiter", "junit-jupiter-api", "5.13.4", True),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.81", True),
)
LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of Java for servers that do little."""
_ATTEMPTS = 4
"""The most attempts of an application."""
_WEB = "yarn.resourcemanager.webapp.address"
_ADDRESSES = ("yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address", _WEB)
"""The settings of clients and application masters."""


def cluster_jars() -> Path:
    """Hadoop's clusters for tests, in the version of PySpark's Hadoop, and what their jar lacks."""
    clusters = ("org.apache.hadoop", "hadoop-client-minicluster", hadoop_version(), False)
    return fetched("hadoop", clusters, *_BESIDE)


class HadoopCluster:
    """A name node, a data node, a resource manager and two node managers of 4 GB, on free ports of this machine.

    Node managers end a container that takes more memory than it has asked for, as those of a real cluster do. The
    process ends with this one.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="wallaroo-hadoop-"))
        self.configuration = self._folder / "conf"
        """The folder for HADOOP_CONF_DIR."""
        self.port = 0
        """The name node's port."""
        self._web = ""
        self._log: IO[str] | None = None
        self._gateway: JavaGateway | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except Py4JJavaError as error:
            # The text of the error is in the process that is about to end.
            problem = str(error)
            self.__exit__()
            raise ServerFailed(problem) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
            # Java ends when its input is closed, whatever threads its servers have.
            self._gateway.java_process.stdin.close()
            self._gateway.java_process.wait()
        if self._log is not None:
            self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        program = shutil.which(java())
        assert program is not None, "there is no Java"
        (spark_s,) = jars_of_spark().glob("py4j-*.jar")
        self._log = (self._folder / "log").open("w")
        port, process = launch_gateway(
            jarpath=str(spark_s),
            classpath=f"{cluster_jars()}/*:{jars_of_spark()}/*",
            javaopts=["-Xmx512m", *LIGHT, "--add-opens=java.base/java.lang=ALL-UNNAMED"],
            die_on_exit=True, redirect_stdout=self._log, redirect_stderr=self._log, java_path=program,
            cwd=str(self._folder), return_proc=True,
        )  # fmt: skip
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port), java_process=process)
        hadoop = self._gateway.jvm.org.apache.hadoop
        settings = hadoop.yarn.conf.YarnConfiguration()
        for name, value in {
            "hdfs.minidfs.basedir": f"{self._folder}/data",
            "yarn.minicluster.control-resource-monitoring": "true",
            "yarn.nodemanager.vmem-check-enabled": "false",
            # Containers start the Java of this variable.
            "yarn.nodemanager.admin-env": f"JAVA_HOME={Path(program).resolve().parents[1]}",
            "yarn.resourcemanager.am.max-attempts": str(_ATTEMPTS),
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
        }.items():
            settings.set(name, value)
        files = hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1).build()
        files.waitActive()
        self.port = int(files.getNameNodePort())
        yarn = hadoop.yarn.server.MiniYARNCluster("yarn", 2, 1, 1)
        yarn.init(settings)
        yarn.start()
        found = {name: str(yarn.getConfig().get(name)) for name in _ADDRESSES}
        self._web = f"http://{found[_WEB]}/ws/v1/cluster"
        self.configuration.mkdir()
        _write(self.configuration / "core-site.xml", {"fs.defaultFS": f"hdfs://127.0.0.1:{self.port}"})
        _write(self.configuration / "yarn-site.xml", {**found, "yarn.resourcemanager.am.max-attempts": str(_ATTEMPTS)})

    def resource_manager(self, path: str, body: Any = None) -> Any:
        """The answer of the resource manager's REST API; a request with a body is a PUT."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._web}/{path}?user.name=root",
            data,
            {"Content-Type": "application/json"},
            method="GET" if data is None else "PUT",
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


def _write(file: Path, settings: dict[str, str]) -> None:
    root = ElementTree.Element("configuration")
    for name, value in settings.items():
        item = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(item, "name").text = name
        ElementTree.SubElement(item, "value").text = value
    ElementTree.ElementTree(root).write(file)
