"""Labels each executor's pod with the slots that it serves, as ``slot.wallaroo/0: serving``, for their services.

Which executor serves a slot is seen by its port. Pods of executors that have ended are deleted: Spark does that for
those of its own application, and after a crash of the driver nobody else does.
"""

import json
import os
import pathlib
import socket
import ssl
import time
import urllib.request

ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
PODS = f"https://kubernetes.default.svc/api/v1/namespaces/{os.environ['NAMESPACE']}/pods"
SELECTOR = os.environ["EXECUTORS"].replace("=", "%3D").replace(",", "%2C")
SLOTS = {f"slot.wallaroo/{slot}": int(os.environ["PORT"]) + slot for slot in range(int(os.environ["SLOTS"]))}
SECONDS = 1.0
ENDED_SECONDS = 300
"""How long the pod of an ended executor stays, with its log."""


def call(path, method="GET", body=None):
    """An answer of the API, with the token of this moment, which Kubernetes replaces every hour."""
    headers = {
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
        "Content-Type": "application/merge-patch+json",
    }
    request = urllib.request.Request(PODS + path, body and json.dumps(body).encode(), headers, method=method)
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
        return json.load(answer)


def listens(host, port):
    """Whether a port of a pod is open."""
    try:
        socket.create_connection((host, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def main():
    """Until the container ends."""
    ended = {}
    while True:
        try:
            pods = call(f"?labelSelector={SELECTOR}")["items"]
            ended = {
                pod["metadata"]["name"]: ended.get(pod["metadata"]["name"], time.monotonic())
                for pod in pods
                if pod["status"]["phase"] in ("Succeeded", "Failed")
            }
            for name in [name for name, since in ended.items() if time.monotonic() - since > ENDED_SECONDS]:
                call(f"/{name}", "DELETE")
            for pod in pods:
                name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
                host = pod["status"].get("podIP") if name not in ended else None
                serves = {slot: "serving" if host and listens(host, port) else None for slot, port in SLOTS.items()}
                changed = {slot: value for slot, value in serves.items() if labels.get(slot) != value}
                if changed:
                    call(f"/{name}", "PATCH", {"metadata": {"labels": changed}})
                    print(f"{name}: {changed}", flush=True)
        except OSError as error:
            print(f"the API does not answer as it should, and is asked again: {error}", flush=True)
        time.sleep(SECONDS)


main()
