"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of one run, without a kubelet.

They are built from the Go modules of Kubernetes and etcd, in the versions below, into a folder that later runs use.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import secrets
import subprocess
import time
import urllib.error
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from proving.kubernetes.api import Api

VERSION = "1.37.2"
ETCD, ETCD_VERSION = "go.etcd.io/etcd/server/v3", "3.7.3"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
SERVICES = "198.18.128.0/20"
FIRST_SERVICE = "198.18.128.1"
"""The address of the service `kubernetes`."""
START_SECONDS = 120.0


def build(folder: Path) -> None:
    """Build the programs that are missing in ``folder``. The first time takes a quarter of an hour on two cores."""
    packages = {program: f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS} | {"etcd": ETCD}
    for program, package in packages.items():
        if not (folder / program).exists():
            module = _module(folder / ("etcd-module" if program == "etcd" else "module"), package)
            flags = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v{VERSION}"
            _go(module, "build", "-mod=mod", flags, "-o", str(folder / program), package)


def _module(folder: Path, package: str) -> Path:
    """A module in ``folder`` that needs the module of a package, which is there from now on."""
    if (folder / "go.sum").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["module programs", "go 1.26.0"]
    packages = [package]
    if package == ETCD:
        lines.append(f"require {ETCD} v{ETCD_VERSION}")
    else:
        packages = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
        lines.append(f"require k8s.io/kubernetes v{VERSION}")
        (folder / "go.mod").write_text("\n".join(lines))
        # Kubernetes' own module names its parts by folders; these are published in versions of their own.
        fetched = json.loads(_go(folder, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"))
        text = (Path(fetched["Dir"]) / "go.mod").read_text()
        parts = re.findall(r"^\s+(k8s\.io/\S+) => \./staging", text, re.MULTILINE)
        lines += [f"replace {part} => {part} v0.{VERSION.partition('.')[2]}" for part in parts]
    (folder / "go.mod").write_text("\n".join(lines))
    imports = "".join(f'import _ "{name}"\n' for name in packages)
    (folder / "programs.go").write_text(f"//go:build programs\n\npackage programs\n\n{imports}")
    _go(folder, "mod", "tidy")
    return folder


def _go(module: Path, *arguments: str) -> str:
    return subprocess.run(["go", *arguments], cwd=module, check=True, capture_output=True, text=True).stdout


class ControlPlane:
    """The servers, with their files and logs in ``folder``. This machine has :data:`FIRST_SERVICE` and ``address``."""

    def __init__(self, programs: Path, folder: Path, address: str) -> None:
        self._programs, self.folder, self._address = programs, folder, address
        self._running: list[subprocess.Popen[bytes]] = []
        self._token = secrets.token_hex(16)
        self.url = f"https://{FIRST_SERVICE}:443"
        self.ca = folder / "ca.pem"
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            process.wait()

    @property
    def api(self) -> Api:
        """The API as its administrator."""
        return Api(self.url, self.ca, self._token)

    def api_as(self, token: str) -> Api:
        """The API as the owner of a token."""
        return Api(self.url, self.ca, token)

    def _start_all(self) -> None:
        files = self.folder
        files.mkdir(parents=True)
        self._write_certificates()
        (files / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        self.kubeconfig.write_text(
            f"""apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "{self.url}", certificate-authority: {self.ca}}}}}]
users: [{{name: admin, user: {{token: {self._token}}}}}]
contexts: [{{name: here, context: {{cluster: here, user: admin}}}}]
current-context: here
"""
        )
        etcd = "http://127.0.0.1:2379"
        peer = "http://127.0.0.1:2380"
        self._start(
            "etcd",
            [str(self._programs / "etcd"), f"--data-dir={files}/etcd", f"--listen-client-urls={etcd}",
             f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}", "--unsafe-no-fsync"],
        )  # fmt: skip
        self._start(
            "kube-apiserver",
            [str(self._programs / "kube-apiserver"), f"--etcd-servers={etcd}", f"--bind-address={FIRST_SERVICE}",
             f"--advertise-address={self._address}", "--secure-port=443", f"--service-cluster-ip-range={SERVICES}",
             f"--tls-cert-file={files}/server.pem", f"--tls-private-key-file={files}/server.key",
             f"--token-auth-file={files}/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged=false",
             "--service-account-issuer=https://kubernetes.default.svc",
             f"--service-account-key-file={files}/server.pem",
             f"--service-account-signing-key-file={files}/server.key"],
        )  # fmt: skip
        self._await_ready()
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        # The node of a run sends no heartbeats, so nobody may miss them.
        self._start(
            "kube-controller-manager",
            [str(self._programs / "kube-controller-manager"), *common, "--controllers=*,-node-lifecycle-controller",
             f"--service-account-private-key-file={files}/server.key", f"--root-ca-file={self.ca}"],
        )  # fmt: skip
        self._start("kube-scheduler", [str(self._programs / "kube-scheduler"), *common])

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def _await_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.api.call("GET", "/api/v1/namespaces/default/serviceaccounts")
                return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > until or any(process.poll() is not None for process in self._running):
                    raise RuntimeError(f"the API server does not start ({error}); see {self.folder}") from error
                time.sleep(0.25)

    def _write_certificates(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        ca_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a run's authority")])

        def signed(
            name: x509.Name, of: rsa.RSAPrivateKey, extension: x509.ExtensionType, **more: bool
        ) -> x509.Certificate:
            return (
                x509.CertificateBuilder()
                .subject_name(name)
                .issuer_name(ca_name)
                .public_key(of.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(hours=1))
                .not_valid_after(now + datetime.timedelta(days=1))
                .add_extension(extension, **more)
                .sign(ca_key, hashes.SHA256())
            )

        addresses = [ipaddress.ip_address(text) for text in ("127.0.0.1", self._address, FIRST_SERVICE)]
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        wanted = x509.SubjectAlternativeName([*map(x509.IPAddress, addresses), *map(x509.DNSName, names)])
        pem = serialization.Encoding.PEM
        authority = signed(ca_name, ca_key, x509.BasicConstraints(ca=True, path_length=None), critical=True)
        server = signed(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]), key, wanted, critical=False
        )
        self.ca.write_bytes(authority.public_bytes(pem))
        (self.folder / "server.pem").write_bytes(server.public_bytes(pem))
        (self.folder / "server.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        )
