"""Serve `/version`: the Kubernetes release whose wire behaviour this server implements.

Source: docs/protocol/discovery.md#version.
"""

from __future__ import annotations

import platform

from mooring import __version__, build
from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import accepted
from mooring.server.transport.http import Response

KUBERNETES_MAJOR, KUBERNETES_MINOR, KUBERNETES_PATCH = "1", "37", "1"
KUBERNETES_VERSION = f"v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.{KUBERNETES_PATCH}"
"""Kubernetes release whose wire behaviour is served; kubectl and kubeadm compare their own version with it."""
BUILD_DATE = "2026-01-01T00:00:00Z"
"""Required in the document. A fixed value keeps builds reproducible."""


async def version(context: RequestContext, nothing: None) -> Response:
    """Answer with the version document, which exists in JSON only. Raises NotAcceptableError (406)."""
    accepted(context.request, medias=("json",))
    document = {
        "major": KUBERNETES_MAJOR,
        "minor": KUBERNETES_MINOR,
        "emulationMajor": KUBERNETES_MAJOR,
        "emulationMinor": KUBERNETES_MINOR,
        "minCompatibilityMajor": KUBERNETES_MAJOR,
        "minCompatibilityMinor": str(int(KUBERNETES_MINOR) - 1),
        "gitVersion": f"{KUBERNETES_VERSION}+mooring-{__version__}",
        "gitCommit": build.commit(),
        "gitTreeState": "clean",
        "buildDate": BUILD_DATE,
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{_architecture()}",
    }
    return Response(200, indent_json(encode_json(document)))  # kube-apiserver indents it for every client


def _architecture() -> str:
    """Return Go's name of this machine's architecture."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
