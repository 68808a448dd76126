"""Helm 3 and 4, unmodified: a tenant's chart, the move of a release to server-side apply, a release whose install was refused."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.errors import NotFoundError
from tests.compat.kubectl import SECONDS
from tests.support.liveserver import LiveServer
from tests.support.packagedprograms import INSTALL, programs

TENANT = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: tenant, annotations: {role: "{{ .Values.role }}"}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tenant}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}
subjects: [{kind: ServiceAccount, name: tenant}]
---
apiVersion: v1
kind: Service
metadata: {name: tenant}
spec: {selector: {app: tenant}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Secret
metadata: {name: tenant}
data:
  user: YXBw
{{- if .Values.old }}
  retired: "{{ .Values.old }}"
{{- end }}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: tenant}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: example/c:1}]}}
"""


@dataclass(frozen=True, slots=True)
class Helm:
    """One Helm with the administrator's kubeconfig, and files of its own."""

    program: Path
    version: str
    server: LiveServer
    home: Path

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        folders = {f"HELM_{name}_HOME": str(self.home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [self.program, *args],
            env={"KUBECONFIG": str(self.server.kubeconfig), "HOME": str(self.home), "PATH": "/usr/bin:/bin", **folders},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout


def _installed() -> Sequence[tuple[Path, str]]:
    """Return the program and version of each installed major version of Helm, the oldest first."""
    found = {}
    for program in programs("helm"):
        command = [str(program), "version", "--template", "{{.Version}}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
        version = said.stdout.strip().removeprefix("v")
        found[version.partition(".")[0]] = (program, version)
    return [found[major] for major in sorted(found)]


HELMS = _installed()
needs_both = pytest.mark.skipif(len(HELMS) < 2, reason=f"Helm 3 and 4 are not installed: {INSTALL}")
each = pytest.mark.parametrize(
    "number", [pytest.param(number, id=f"Helm {version}") for number, (_, version) in enumerate(HELMS)] or [0]
)


@pytest.fixture
def helms(server: LiveServer, tmp_path: Path) -> Sequence[Helm]:
    return [Helm(program, version, server, tmp_path / version) for program, version in HELMS]


def chart(folder: Path, template: str) -> str:
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: tenant\nversion: 0.1.0\n")
    (folder / "templates/all.yaml").write_text(template)
    return str(folder)


def read(server: LiveServer, plural: str, space: str) -> Obj:
    """Return the object of the chart that is of this kind."""
    return server.run(lambda cluster: cluster.get(plural, "tenant", space))


@needs_both
@each
@pytest.mark.shows("install, upgrade, roll back and uninstall a chart of a tenant")
def test_the_life_of_a_release(helms: Sequence[Helm], number: int, tmp_path: Path) -> None:
    helm, space = helms[number], f"helm-life-{number}"
    of = ("tenant", chart(tmp_path / "chart", TENANT), "-n", space)
    helm.ok("install", *of, "--create-namespace", "--set", "role=one,old=b2xk")
    before = read(helm.server, "secrets", space)["data"]
    helm.ok("upgrade", *of, "--reset-values", "--set", "role=two")
    assert read(helm.server, "secrets", space)["data"] == {"user": "YXBw"}
    helm.ok("rollback", "tenant", "1", "-n", space)
    assert read(helm.server, "secrets", space)["data"] == before
    helm.ok("uninstall", "tenant", "-n", space)
    with pytest.raises(NotFoundError):
        read(helm.server, "secrets", space)


@needs_both
@pytest.mark.shows("take a release of Helm 3 over to server-side apply")
@pytest.mark.parametrize(
    ("template", "space"),
    [
        pytest.param(TENANT, "helm-moves", id="data"),
        pytest.param(
            TENANT.replace("\ndata:\n  user: YXBw", "\nstringData:\n  user: app"), "helm-moves-strings", id="stringData"
        ),
    ],
)
def test_a_release_of_helm_3_goes_over_to_server_side_apply(
    helms: Sequence[Helm], template: str, space: str, tmp_path: Path
) -> None:
    old, new = helms
    of = ("tenant", chart(tmp_path / "chart", template), "-n", space)
    old.ok("install", *of, "--create-namespace", "--set", "role=one,old=b2xk")
    before = read(new.server, "services", space)["spec"]
    for role in ("one", "two"):
        new.ok("upgrade", *of, "--reset-values", "--set", f"role={role}", "--server-side=true")
        assert read(new.server, "secrets", space)["data"] == {"user": "YXBw"}
        assert read(new.server, "serviceaccounts", space)["metadata"]["annotations"]["role"] == role
        assert read(new.server, "services", space)["spec"] == before


@needs_both
@each
@pytest.mark.shows("uninstall a release whose install was refused")
def test_a_release_that_was_refused_can_be_removed(helms: Sequence[Helm], number: int, tmp_path: Path) -> None:
    helm, space = helms[number], f"helm-refused-{number}"
    of = ("tenant", chart(tmp_path / "chart", DEPLOYMENT), "-n", space)
    refused = helm.run("install", *of, "--create-namespace")
    assert refused.returncode == 1
    assert 'not supported on resources of kind "deployments.apps": this server runs no workloads' in refused.stderr
    helm.ok("uninstall", "tenant", "-n", space)
    assert helm.run("status", "tenant", "-n", space).returncode == 1
