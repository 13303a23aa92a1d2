"""The node of a run: every container that the API server wants is started by crun, in a network namespace of its pod.

It does of a kubelet's work what the chart needs: volumes (emptyDir, ConfigMap, Secret, a claim, the token of a service
account), variables, security contexts, restarts, probes and graceful ends. It limits no memory and no processor. In
place of a cluster's DNS each pod has the names of services in its /etc/hosts, with the addresses of their
EndpointSlices. In place of kube-proxy the name of a service with an address of its own stands for its ready pods, too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from proving.kubernetes.api import Api
from proving.kubernetes.control_plane import FIRST_SERVICE

NODE = "here"
BRIDGE, BRIDGE_ADDRESS, PODS = "wallaroo-pods", "198.18.64.1", "198.18.64"
ROUND_SECONDS = 0.25
RESTART_SECONDS = 1.0
"""The pause before a container is started again; a real kubelet doubles it each time, from 10 s on."""


_CRUN = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec crun --cgroup-manager=disabled run --bundle "$1" "$2"'
"""Starts a container. Some versions of crun do not start at all where both versions of cgroups are mounted."""
_MOUNT = ("destination", "type", "source", "options")


@dataclass(frozen=True)
class Image:
    """An unpacked image."""

    root: Path
    entrypoint: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    folder: str = "/"


@dataclass
class Container:
    """A container of a pod."""

    spec: dict[str, Any]
    name: str
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    """When its present run began, in monotonic seconds."""
    restarts: int = 0
    exit_code: int | None = None
    ready: bool = False
    begun: bool = False
    failures: int = 0
    next_probe: float = 0.0
    """When it is probed next, in monotonic seconds."""
    ends: list[int] = field(default_factory=list)
    """The exit codes of its earlier runs."""


@dataclass
class Pod:
    """A pod of the node."""

    spec: dict[str, Any]
    folder: Path
    address: str
    containers: list[Container]
    ending: float | None = None
    """Until when it may end by itself, in monotonic seconds; None: it is not to end."""
    reported: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.spec["metadata"]["name"])

    @property
    def path(self) -> str:
        """Its path in the API."""
        return f"/api/v1/namespaces/{self.spec['metadata']['namespace']}/pods/{self.name}"

    @property
    def network(self) -> str:
        """The name of its network namespace."""
        return f"wallaroo-{self.address.replace('.', '-')}"


def run(*command: str, check: bool = True) -> str:
    """The output of a command. Raises RuntimeError with its message when it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr}")
    return ended.stdout


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def bridge() -> Iterator[None]:
    """The network of the pods, in which this machine has the addresses of the node and of the API server."""
    run("ip", "link", "del", BRIDGE, check=False)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        for address in (f"{BRIDGE_ADDRESS}/24", f"{FIRST_SERVICE}/32"):
            run("ip", "addr", "add", address, "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        yield
    finally:
        run("ip", "link", "del", BRIDGE, check=False)


class Kubelet:
    """The node, with its files in ``folder`` and its images by name."""

    def __init__(self, api: Api, folder: Path, images: Mapping[str, Image]) -> None:
        self._api, self._folder, self._images = api, folder, images
        self.pods: dict[str, Pod] = {}
        """The pods by their unique ids."""
        self._taken = 1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._rounds, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        """Register the node and begin."""
        room = {"cpu": "16", "memory": "32Gi", "pods": "100", "ephemeral-storage": "100Gi"}
        self._api.call(
            "POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}}
        )
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "",
            "lastTransitionTime": now(),
        }
        self._api.merge(
            f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
        )
        node = self._api.call("GET", f"/api/v1/nodes/{NODE}")
        if node["spec"].get("taints"):
            self._api.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for pod in self.pods.values():
            self._remove(pod)

    def _rounds(self) -> None:
        while not self._ended.wait(ROUND_SECONDS):
            try:
                wanted = {
                    pod["metadata"]["uid"]: pod
                    for pod in self._api.items(f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}")
                }
                for uid in self.pods.keys() - wanted.keys():
                    self._remove(self.pods.pop(uid))
                self._write_hosts()
                for uid, spec in wanted.items():
                    with contextlib.suppress(urllib.error.HTTPError):
                        self._round_of(uid, spec)
            except Exception as error:
                print(f"kubelet: {error!r}", flush=True)

    def _round_of(self, uid: str, spec: dict[str, Any]) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            if spec["status"]["phase"] in ("Succeeded", "Failed"):
                return
            pod = self.pods[uid] = self._new_pod(uid, spec)
        pod.spec["metadata"] = spec["metadata"]
        if spec["metadata"].get("deletionTimestamp"):
            self._end(uid, pod)
            return
        for container in pod.containers:
            self._look_at(pod, container)
        self._report(pod)

    def _new_pod(self, uid: str, spec: dict[str, Any]) -> Pod:
        self._taken += 1
        pod = Pod(spec, self._folder / uid, f"{PODS}.{self._taken}", [])
        pod.folder.mkdir(parents=True)
        pod.containers = [Container(item, f"{self._taken}-{item['name']}") for item in spec["spec"]["containers"]]
        inside, outside = f"p{self._taken}i", f"p{self._taken}o"
        run("ip", "netns", "add", pod.network)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", pod.network)
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        run("ip", "-n", pod.network, "link", "set", inside, "name", "eth0")
        run("ip", "-n", pod.network, "addr", "add", f"{pod.address}/24", "dev", "eth0")
        run("ip", "-n", pod.network, "link", "set", "eth0", "up")
        run("ip", "-n", pod.network, "link", "set", "lo", "up")
        run("ip", "-n", pod.network, "route", "add", "default", "via", BRIDGE_ADDRESS)
        self._write_hosts_of(pod, "")
        (pod.folder / "resolv.conf").touch()
        return pod

    # Containers

    def _look_at(self, pod: Pod, container: Container) -> None:
        if container.process is not None and (code := container.process.poll()) is not None:
            container.process, container.exit_code, container.ready, container.begun = None, code, False, False
            container.ends.append(code)
            run("crun", "delete", "--force", container.name, check=False)
            container.started = time.monotonic()
        if container.process is None:
            again = pod.spec["spec"].get("restartPolicy", "Always") == "Always"
            if container.exit_code is None or (again and time.monotonic() > container.started + RESTART_SECONDS):
                container.restarts += container.exit_code is not None
                self._start(pod, container)
        elif time.monotonic() >= container.next_probe:
            self._probe(pod, container)

    def _start(self, pod: Pod, container: Container) -> None:
        bundle = pod.folder / container.name
        run("umount", f"{bundle}/root", check=False)
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self._bundle(pod, container, bundle)))
        log = (pod.folder / f"{container.spec['name']}.log").open("ab")
        container.process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _CRUN, "crun", str(bundle), container.name],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        log.close()
        container.started, container.exit_code, container.failures = time.monotonic(), None, 0

    def _bundle(self, pod: Pod, container: Container, bundle: Path) -> dict[str, Any]:
        """The container as a bundle of the Open Container Initiative."""
        spec, image = container.spec, self._images[container.spec["image"]]
        of_pod, own = pod.spec["spec"].get("securityContext", {}), spec.get("securityContext", {})
        user, group, more = of_pod.get("runAsUser", 0), of_pod.get("runAsGroup", 0), of_pod.get("fsGroup")
        env = self._environment(pod, spec, image)
        command = [*(spec.get("command") or image.entrypoint), *spec.get("args", [])]
        drops = "ALL" in own.get("capabilities", {}).get("drop", [])
        capabilities = [] if drops else ["CAP_CHOWN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL"]
        volumes = {volume["name"]: self._volume(pod, volume) for volume in pod.spec["spec"].get("volumes", [])}
        mounts = [
            {"destination": mount["mountPath"], "source": str(volumes[mount["name"]]), "type": "bind",
             "options": ["rbind", "ro" if mount.get("readOnly") else "rw"]}
            for mount in spec.get("volumeMounts", [])
        ]  # fmt: skip
        system = [
            ("/proc", "proc", "proc", []),
            ("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"]),
            ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777"]),
            ("/etc/hosts", "bind", str(pod.folder / "hosts"), ["rbind", "ro"]),
            ("/etc/resolv.conf", "bind", str(pod.folder / "resolv.conf"), ["rbind", "ro"]),
        ]
        # crun makes the places of volumes in a layer above the image.
        for part in ("above", "work", "root"):
            (bundle / part).mkdir()
        layers = f"lowerdir={image.root},upperdir={bundle}/above,workdir={bundle}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, f"{bundle}/root")
        return {
            "ociVersion": "1.0.2",
            "hostname": pod.name,
            "root": {"path": "root", "readonly": own.get("readOnlyRootFilesystem", False)},
            "process": {
                "args": [expanded(text, env) for text in command],
                "cwd": image.folder,
                "env": [f"{name}={value}" for name, value in env.items()],
                "user": {"uid": user, "gid": group, "additionalGids": [] if more is None else [more]},
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
                "noNewPrivileges": own.get("allowPrivilegeEscalation") is False,
            },
            "mounts": [*(dict(zip(_MOUNT, row, strict=True)) for row in system), *mounts],
            "linux": {
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
                    {"type": "network", "path": f"/run/netns/{pod.network}"},
                ],
            },
        }  # fmt: skip

    def _environment(self, pod: Pod, spec: dict[str, Any], image: Image) -> dict[str, str]:
        env = {"PATH": os.defpath} | dict(item.split("=", 1) for item in image.env)
        env |= {"HOSTNAME": pod.name, "KUBERNETES_SERVICE_HOST": FIRST_SERVICE, "KUBERNETES_SERVICE_PORT": "443"}
        for item in spec.get("env", []):
            source = item.get("valueFrom", {})
            if reference := source.get("secretKeyRef"):
                value = self._data(pod, "secrets", reference["name"])[reference["key"]].decode()
            elif reference := source.get("fieldRef"):
                value = {
                    "metadata.name": pod.name,
                    "metadata.namespace": pod.spec["metadata"]["namespace"],
                    "status.podIP": pod.address,
                }[reference["fieldPath"]]
            else:
                value = expanded(item.get("value", ""), env)
            env[item["name"]] = value
        return env

    def _data(self, pod: Pod, kind: str, name: str) -> dict[str, bytes]:
        found = self._api.call("GET", f"/api/v1/namespaces/{pod.spec['metadata']['namespace']}/{kind}/{name}")
        if kind == "secrets":
            return {key: base64.b64decode(value) for key, value in found["data"].items()}
        return {key: value.encode() for key, value in found["data"].items()}

    def _volume(self, pod: Pod, volume: dict[str, Any]) -> Path:
        """The folder of a volume, filled."""
        place = pod.folder / "volumes" / str(volume["name"])
        group = pod.spec["spec"].get("securityContext", {}).get("fsGroup", 0)
        if claim := volume.get("persistentVolumeClaim"):
            namespace = pod.spec["metadata"]["namespace"]
            bound = self._api.call("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim['claimName']}")
            volume_of = self._api.call("GET", f"/api/v1/persistentvolumes/{bound['spec']['volumeName']}")
            kept = Path(volume_of["spec"]["hostPath"]["path"])
            os.chown(kept, -1, group)
            kept.chmod(0o2775)
            return kept
        place.mkdir(parents=True, exist_ok=True)
        for name, content in self._files_of(pod, volume).items():
            (place / name).write_bytes(content)
            os.chown(place / name, -1, group)
            (place / name).chmod(volume.get("secret", {}).get("defaultMode", 0o644))
        os.chown(place, -1, group)
        place.chmod(0o2777 if "emptyDir" in volume else 0o2755)
        return place

    def _files_of(self, pod: Pod, volume: dict[str, Any]) -> dict[str, bytes]:
        if config := volume.get("configMap"):
            return self._data(pod, "configmaps", config["name"])
        if secret := volume.get("secret"):
            return self._data(pod, "secrets", secret["secretName"])
        files: dict[str, bytes] = {}
        for source in volume.get("projected", {}).get("sources", []):
            if wanted := source.get("serviceAccountToken"):
                account = pod.spec["spec"]["serviceAccountName"]
                path = f"/api/v1/namespaces/{pod.spec['metadata']['namespace']}/serviceaccounts/{account}/token"
                bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.spec["metadata"]["uid"]}
                asked = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
                files[wanted["path"]] = self._api.call("POST", path, asked)["status"]["token"].encode()
            elif config := source.get("configMap"):
                data = self._data(pod, "configmaps", config["name"])
                files |= {item["path"]: data[item["key"]] for item in config["items"]}
            else:
                files["namespace"] = pod.spec["metadata"]["namespace"].encode()
        return files

    # Probes

    def _probe(self, pod: Pod, container: Container) -> None:
        spec = container.spec
        startup = spec.get("startupProbe")
        container.begun = container.begun or startup is None
        probe = startup if not container.begun else spec.get("livenessProbe")
        if probe:
            good = self._answers(pod, spec, probe)
            container.failures = 0 if good else container.failures + 1
            container.begun = container.begun or good
            if container.failures >= probe.get("failureThreshold", 3):
                run("crun", "kill", container.name, "KILL", check=False)
        readiness = spec.get("readinessProbe")
        container.ready = container.begun and (readiness is None or self._answers(pod, spec, readiness))
        container.next_probe = time.monotonic() + 1.0

    def _answers(self, pod: Pod, spec: dict[str, Any], probe: dict[str, Any]) -> bool:
        ports = {port["name"]: port["containerPort"] for port in spec.get("ports", [])}
        action = probe.get("httpGet") or probe["tcpSocket"]
        port = ports.get(action["port"], action["port"])
        try:
            if "httpGet" not in probe:
                socket.create_connection((pod.address, port), timeout=probe.get("timeoutSeconds", 1)).close()
                return True
            url = f"http://{pod.address}:{port}{action['path']}"
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as answer:
                return 200 <= int(answer.status) < 400
        except OSError:
            return False

    # Reports and ends

    def _report(self, pod: Pod) -> None:
        states = []
        for container in pod.containers:
            if container.process is not None:
                state: dict[str, Any] = {"running": {}}
            else:
                state = {
                    "terminated": {
                        "exitCode": container.exit_code or 0,
                        "reason": "Completed" if not container.exit_code else "Error",
                    }
                }
            states.append({
                "name": container.spec["name"], "image": container.spec["image"], "imageID": "", "state": state,
                "ready": container.ready, "restartCount": container.restarts, "started": container.process is not None,
            })  # fmt: skip
        ended = [container.process is None for container in pod.containers]
        phase = "Running"
        if all(ended) and pod.spec["spec"].get("restartPolicy", "Always") == "Never":
            phase = "Failed" if any(container.exit_code for container in pod.containers) else "Succeeded"
        ready = "True" if phase == "Running" and all(container.ready for container in pod.containers) else "False"
        status = {
            "phase": phase, "podIP": pod.address, "podIPs": [{"ip": pod.address}], "hostIP": BRIDGE_ADDRESS,
            "containerStatuses": states,
            "conditions": [{"type": kind, "status": "True" if kind in ("Initialized", "PodScheduled") else ready}
                           for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")],
        }  # fmt: skip
        if status != pod.reported:
            self._api.merge(
                f"{pod.path}/status", {"status": {"startTime": pod.spec["metadata"]["creationTimestamp"], **status}}
            )
            pod.reported = status

    def _end(self, uid: str, pod: Pod) -> None:
        running = [
            container
            for container in pod.containers
            if container.process is not None and container.process.poll() is None
        ]
        if pod.ending is None:
            pod.ending = time.monotonic() + pod.spec["metadata"].get("deletionGracePeriodSeconds", 30)
            for container in running:
                container.ready = False
                run("crun", "kill", container.name, "TERM", check=False)
        if running and time.monotonic() < pod.ending:
            return
        self._remove(self.pods.pop(uid))
        self._api.call("DELETE", pod.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    def _remove(self, pod: Pod) -> None:
        for container in pod.containers:
            run("crun", "delete", "--force", container.name, check=False)
            if container.process is not None:
                container.process.wait()
            run("umount", str(pod.folder / container.name / "root"), check=False)
        run("ip", "netns", "del", pod.network, check=False)

    # Names

    def _write_hosts(self) -> None:
        names: dict[str, list[str]] = {"kubernetes.default.svc": [FIRST_SERVICE]}
        services = {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item
            for item in self._api.items("/api/v1/services")
        }
        for part in self._api.items("/apis/discovery.k8s.io/v1/endpointslices"):
            namespace = part["metadata"]["namespace"]
            service = part["metadata"].get("labels", {}).get("kubernetes.io/service-name", "")
            if (namespace, service) not in services or service == "kubernetes":
                continue
            for endpoint in part.get("endpoints") or []:
                # A slice of a service that publishes pods before they are ready says that these are ready.
                if endpoint["conditions"].get("ready"):
                    names.setdefault(f"{service}.{namespace}.svc", []).extend(endpoint["addresses"])
                    if endpoint.get("hostname"):
                        names[f"{endpoint['hostname']}.{service}.{namespace}.svc"] = endpoint["addresses"]
        lines = "".join(
            f"{address} {name}\n" for name, addresses in sorted(names.items()) for address in sorted(addresses)
        )
        for pod in self.pods.values():
            self._write_hosts_of(pod, lines)

    def _write_hosts_of(self, pod: Pod, lines: str) -> None:
        (pod.folder / "hosts").write_text(f"127.0.0.1 localhost\n{pod.address} {pod.name}\n{lines}")


def expanded(text: str, env: Mapping[str, str]) -> str:
    """A text with the variables in the place of ``$(NAME)``; unknown ones stay."""
    return re.sub(r"\$\((\w+)\)", lambda found: env.get(found[1], found[0]), text)
