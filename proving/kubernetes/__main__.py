"""Install the chart of conf/kubernetes on a real control plane, send lines, kill what can die, and compare the rows.

It needs root, Go, Debian's packages buildah, crun, debootstrap and iproute2, and some 4 GB of disk. The
first run builds Kubernetes' programs, Helm and the images in ``build/kubernetes``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset

from proving.chaos.judge import sink_log
from proving.kubernetes.control_plane import HELM, ControlPlane, build
from proving.kubernetes.kubelet import BRIDGE_ADDRESS, Image, Kubelet, bridge, run
from proving.reporting import Steps

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "conf" / "kubernetes"
NAMESPACE = "streaming"
PATH = f"/api/v1/namespaces/{NAMESPACE}"
EXECUTORS = f"{PATH}/pods?labelSelector=app.kubernetes.io/component%3Dexecutor"
DRIVER = f"{PATH}/pods/orders-driver-0"
IMAGE, REDIS, BASE = "registry.example/wallaroo-spark:0.1.0", "redis:7.4", "debian:bookworm-slim"
LINES = 20_000


def main() -> None:
    """Build what is missing, and run."""
    parser = argparse.ArgumentParser(prog="python -m proving.kubernetes", description=__doc__)
    parser.add_argument("--tls", action="store_true", help="with certificates, and a service for each slot")
    given = parser.parse_args()
    folder = ROOT / "build" / "kubernetes"
    programs = folder / "programs"
    build(programs)
    if not (programs / "helm").exists():
        subprocess.run(["go", "install", HELM], check=True, env={**os.environ, "GOBIN": str(programs)})
    build_images(folder)
    shutil.rmtree(folder / "run", ignore_errors=True)
    with contextlib.ExitStack() as stack:
        images = {
            IMAGE: stack.enter_context(mounted(IMAGE)),
            REDIS: stack.enter_context(mounted(REDIS)),
        }
        stack.enter_context(bridge())
        plane = stack.enter_context(ControlPlane(programs, folder / "run", BRIDGE_ADDRESS))
        node = stack.enter_context(Kubelet(plane.api, folder / "run" / "pods", images))
        Run(programs, plane, node, folder / "run" / "claim", tls=given.tls).run()


def build_images(folder: Path) -> None:
    """Build the chart's image by its Dockerfile, and one with Redis, on a base that debootstrap makes."""
    if IMAGE.partition(":")[0] in run("buildah", "images"):
        return
    base, context = folder / "base", folder / "context"
    if not base.exists():
        run("debootstrap", "--variant=minbase", "bookworm", str(base))
        certificates = Path(os.environ.get("SSL_CERT_FILE", ""))
        if certificates.is_file():
            # Of a network whose proxy has an authority of its own; pip in the build shall trust it.
            shutil.copy(certificates, base / "opt/authorities.pem")
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", container, str(base), "/")
    if (base / "opt/authorities.pem").exists():
        run("buildah", "config", "--env", "PIP_CERT=/opt/authorities.pem", container)
    run("buildah", "commit", container, BASE)
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    tree = subprocess.Popen(["git", "archive", "HEAD", "conf/kubernetes", "jobs"], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(context)], stdin=tree.stdout, check=True)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(context / "dist"), str(ROOT))
    (context / "redis").write_text(
        f"FROM {BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends redis-server\n"
    )
    options = ("--isolation", "chroot", "--network", "host", "--pull-never")
    run("buildah", "bud", *options, "-f", str(context / "conf/kubernetes/Dockerfile"), "-t", IMAGE, str(context))
    run("buildah", "bud", *options, "-f", str(context / "redis"), "-t", REDIS, str(context))


@contextlib.contextmanager
def mounted(name: str) -> Iterator[Image]:
    """An image, with its files where crun finds them."""
    container = run("buildah", "from", "--pull-never", name).strip()
    try:
        root = Path(run("buildah", "mount", container).strip())

        def setting(of: str) -> tuple[str, ...]:
            listed = run(
                "buildah",
                "inspect",
                "--format",
                f"{{{{range .OCIv1.Config.{of}}}}}{{{{println .}}}}{{{{end}}}}",
                container,
            )
            return tuple(line for line in listed.split("\n") if line)

        folder = run("buildah", "inspect", "--format", "{{.OCIv1.Config.WorkingDir}}", container).strip()
        yield Image(root, setting("Entrypoint"), setting("Env"), folder or "/")
    finally:
        run("buildah", "rm", container)


class Run(Steps):
    """One installation, from its secret to its end. Each step prints what it has found, and raises what is wrong."""

    def __init__(self, programs: Path, plane: ControlPlane, node: Kubelet, claim: Path, *, tls: bool) -> None:
        # The API server has no answer for an object that is not there yet.
        super().__init__(passing=(urllib.error.HTTPError,))
        self._programs, self._plane, self._node, self._claim, self._tls = programs, plane, node, claim, tls
        self._api = plane.api
        self._sent = 0

    def run(self) -> None:
        """All steps in turn."""
        self.prepare()
        self.install()
        self.rights()
        self.connect()
        self.kill_executor()
        self.drain()
        self.kill_driver()
        self.delete_driver()
        self.uninstall()
        self.say("every line is in the table once, and nothing is left of the release")

    def prepare(self) -> None:
        """A namespace that Kubernetes holds to its strictest standard of pods, a secret, and a claim on a folder."""
        self._claim.mkdir(parents=True)
        enforce = {
            "pod-security.kubernetes.io/enforce": "restricted",
            "pod-security.kubernetes.io/enforce-version": "latest",
        }
        self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": enforce}})
        secret = {"cookie": "a-cookie", "status-page-token": "a-token-of-the-page", "redis-password": "ofRedis1"}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
        self._api.call("POST", f"{PATH}/secrets", {"metadata": {"name": "orders"}, "data": data})
        size = {"resources": {"requests": {"storage": "1Gi"}}}
        of = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {**of, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(self._claim)}}
        self._api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "orders"}, "spec": volume})
        claim = {"metadata": {"name": "orders-data"}, "spec": {**of, **size, "volumeName": "orders"}}
        self._api.call("POST", f"{PATH}/persistentvolumeclaims", claim)

    def helm(self, *arguments: str) -> str:
        """The output of Helm."""
        return run(
            str(self._programs / "helm"), "--kubeconfig", str(self._plane.kubeconfig), "-n", NAMESPACE, *arguments
        )

    def install(self) -> None:
        """Install the chart with its defaults, but for a batch each second."""
        values = ["receive.trigger.processingTime=1 second"]
        values += ["slots.service=ClusterIP"]
        if self._tls:
            self.certificate()
            values += ["tls.secret=orders-tls"]
        self.helm("install", "orders", str(CHART / "chart"), *(text for value in values for text in ("--set", value)))
        self.await_driver("the driver is ready")
        self.await_slots()

    def certificate(self) -> None:
        """A secret with a certificate for the names that the chart uses."""
        import trustme

        authority = trustme.CA()
        issued = authority.issue_cert(*(f"orders-{name}.{NAMESPACE}.svc" for name in ("executors", "slot-0", "slot-1")))
        files = {
            "tls.crt": b"".join(blob.bytes() for blob in issued.cert_chain_pems),
            "tls.key": issued.private_key_pem.bytes(),
            "ca.crt": authority.cert_pem.bytes(),
        }
        data = {key: base64.b64encode(value).decode() for key, value in files.items()}
        body = {"metadata": {"name": "orders-tls"}, "type": "kubernetes.io/tls", "data": data}
        self._api.call("POST", f"{PATH}/secrets", body)

    def executors(self) -> list[dict[str, Any]]:
        """The pods of executors that run."""
        return [
            pod
            for pod in self._api.items(EXECUTORS)
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    def await_driver(self, what: str) -> None:
        """Wait until the driver's pod is ready, which is when /healthz finds nothing wrong."""

        def ready() -> bool:
            pod = self._api.call("GET", DRIVER)
            conditions = pod["status"].get("conditions", [])
            return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

        self.wait(what, ready)

    def behind(self, slot: int) -> list[str]:
        """The addresses behind the service of a slot."""
        slices = self._api.items(
            f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector=kubernetes.io/service-name%3Dorders-slot-{slot}"
        )
        return [
            address for part in slices for endpoint in part.get("endpoints") or [] for address in endpoint["addresses"]
        ]

    def await_slots(self) -> None:
        """Wait until each slot's service has one executor, which listens at the slot's port."""

        def one_each() -> bool:
            running = {pod["status"]["podIP"] for pod in self.executors()}
            found = [self.behind(slot) for slot in (0, 1)]
            return all(len(addresses) == 1 and addresses[0] in running for addresses in found)

        self.wait("each slot's service has one executor behind it", one_each)

    def rights(self) -> None:
        """What the accounts of driver and executors may do."""

        def may(account: str, verb: str, resource: str) -> bool:
            attributes = {"namespace": NAMESPACE, "verb": verb, "resource": resource}
            asked = {
                "spec": {
                    "user": f"system:serviceaccount:{NAMESPACE}:orders-{account}",
                    "resourceAttributes": attributes,
                }
            }
            answer = self._api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", asked)
            return bool(answer["status"]["allowed"])

        assert may("driver", "create", "pods")
        assert not any(
            may("driver", verb, what)
            for verb, what in (("get", "secrets"), ("create", "services"), ("create", "roles"))
        )
        assert not any(may("executor", verb, "pods") for verb in ("get", "list", "create"))
        self.say("the driver may make pods and read no secret, executors may do nothing")

    def connect(self) -> None:
        """A connector in a pod of its own follows a file; its first lines are in the table."""
        (self._claim / "in").mkdir()
        self.write_lines()
        target = f"orders-executors.{NAMESPACE}.svc"
        command = ["wallaroo-spark", "send", "/data/in/lines.txt", "--follow", "--stream", "lines"]
        command += ["--instance", "shop-1", "--workers", f"{target}:7100,{target}:7101", "--cookie", "env:COOKIE"]
        mounts = [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}]
        volumes: list[Any] = [
            {"name": "data", "persistentVolumeClaim": {"claimName": "orders-data"}},
            {"name": "tmp", "emptyDir": {}},
        ]
        if self._tls:
            command += ["--tls-ca", "/tls/ca.crt"]
            mounts.append({"name": "tls", "mountPath": "/tls"})
            volumes.append({"name": "tls", "secret": {"secretName": "orders-tls", "defaultMode": 0o440}})
        env = [{"name": "COOKIE", "valueFrom": {"secretKeyRef": {"name": "orders", "key": "cookie"}}}]
        safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
        pod = {"runAsNonRoot": True, "runAsUser": 10185, "fsGroup": 10185, "seccompProfile": {"type": "RuntimeDefault"}}
        container = {
            "name": "shop",
            "image": IMAGE,
            "args": command,
            "env": env,
            "volumeMounts": mounts,
            "securityContext": safe,
        }
        spec = {"containers": [container], "volumes": volumes, "securityContext": pod, "restartPolicy": "Never"}
        self._api.call("POST", f"{PATH}/pods", {"metadata": {"name": "shop-1"}, "spec": spec})
        self.await_rows("the first lines are committed")

    def write_lines(self) -> None:
        """Give the connector more lines."""
        with (self._claim / "in" / "lines.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"line {self._sent + number}\n" for number in range(LINES))
        self._sent += LINES

    def await_rows(self, what: str) -> None:
        """Wait until all lines are in the table; raises when one is there twice."""

        def rows() -> bool:
            log = self._claim / "rows" / "_spark_metadata"
            return log.exists() and self.read_rows() >= self._sent

        self.wait(what, rows)

    def read_rows(self) -> int:
        """The number of rows that Spark has committed. Raises AssertionError when they are not the lines, each once."""
        here = [str(file) for _, file in sink_log(self._claim / "rows")]
        table = pyarrow.dataset.dataset(here, format="parquet").to_table(columns=["value"]) if here else None
        values = [] if table is None else [bytes(value).decode() for value in table["value"].to_pylist()]
        assert sorted(values) == sorted(f"line {number}" for number in range(len(values))), (
            "a line is missing or repeated"
        )
        return len(values)

    def kill_executor(self) -> None:
        """Kill the executor of slot 0 while lines are on their way."""
        (address,) = self.behind(0)
        (victim,) = [pod for pod in self._node.pods.values() if pod.address == address]
        self.write_lines()
        run("crun", "kill", victim.containers[0].name, "KILL")
        self.say(f"{victim.name}, which served slot 0, is killed")
        self.wait("slot 0 has another executor behind its service", lambda: self.behind(0) not in ([], [address]))
        self.wait("Spark has its three executors again", lambda: len(self.executors()) == 3)
        self.await_rows("its lines are committed")

    def drain(self) -> None:
        """Evict two executors at once: the budget lets one go."""
        refused = 0
        for pod in self.executors()[:2]:
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod["metadata"]["name"], "namespace": NAMESPACE},
            }
            try:
                self._api.call("POST", f"{PATH}/pods/{pod['metadata']['name']}/eviction", eviction)
            except urllib.error.HTTPError as error:
                refused += error.code == 429
        assert refused == 1, f"{refused} of two evictions were refused"
        self.say("of two evictions at once the second is refused")
        self.write_lines()
        self.wait("Spark has its three executors again", lambda: len(self.executors()) == 3)
        self.await_rows("lines are committed")

    def kill_driver(self) -> None:
        """Kill the driver's container; its pod stays."""
        (driver,) = [pod for pod in self._node.pods.values() if pod.name == "orders-driver-0"]
        before = {pod["metadata"]["uid"] for pod in self.executors()}
        self.write_lines()
        run("crun", "kill", driver.containers[0].name, "KILL")
        self.say("the driver's container is killed")

        def new_ones() -> bool:
            running = {pod["metadata"]["uid"] for pod in self.executors()}
            return len(running) == 3 and not running & before

        self.wait("three new executors run, and no old one", new_ones)
        self.await_driver("the driver is ready again")
        self.await_rows("its lines are committed")
        self.await_slots()

    def delete_driver(self) -> None:
        """Delete the driver's pod, as a drain of its node does."""
        old = self._api.call("GET", DRIVER)["metadata"]["uid"]
        self.write_lines()
        self._api.call("DELETE", DRIVER)
        self.wait(
            "the StatefulSet has made another driver", lambda: self._api.call("GET", DRIVER)["metadata"]["uid"] != old
        )
        self.await_driver("it is ready")
        owners = {owner["uid"] for pod in self._api.items(EXECUTORS) for owner in pod["metadata"]["ownerReferences"]}
        assert old not in owners, "pods of executors of the old driver are still there"
        self.await_rows("its lines are committed")

    def uninstall(self) -> None:
        """Uninstall the release: nothing of it stays."""
        self.helm("uninstall", "orders", "--wait")
        self._api.call("DELETE", f"{PATH}/pods/shop-1")
        self.wait("no pod is left", lambda: not self._api.items(f"{PATH}/pods"))
        kept = [item["metadata"]["name"] for item in self._api.items(f"{PATH}/configmaps")]
        assert kept == ["kube-root-ca.crt"], f"these ConfigMaps are left: {kept}"


if __name__ == "__main__":
    main()
