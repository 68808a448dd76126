"""Test that nginx and HAProxy, with the settings that people begin with, pass on what the server replies."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from mooring.api.paths import PATHS
from mooring.client.cluster import ClusterClient
from tests.support.liveserver import LiveServer, live_server
from tests.support.polling import eventually
from tests.support.ports import free_port

__all__ = ["live_server"]

CONFIG_MAPS = PATHS["configmaps"].path("default")
NGINX = """
daemon off; master_process off; pid {d}/pid; error_log {d}/error.log; events {{}}
http {{ access_log off; client_max_body_size 50m; client_body_temp_path {d}/1; proxy_temp_path {d}/2; fastcgi_temp_path {d}/3;
  uwsgi_temp_path {d}/4; scgi_temp_path {d}/5;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }} }}
"""
"""nginx's defaults: it speaks HTTP/1.0 to the server, and ends each connection."""
HAPROXY = """
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen control-plane
  bind 127.0.0.1:{port}
  option httpchk GET /readyz
  http-check expect status 200
  server first {endpoint} check check-ssl verify none inter 200ms rise 1
"""
"""kubeadm's page about high availability, with a check by HTTP/1.0."""


def program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


@contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: is_listening(port))
            yield port
        finally:
            process.terminate()


@pytest.fixture
def nginx(live_server: LiveServer, tmp_path: Path) -> Iterator[int]:
    port, config = free_port(), tmp_path / "nginx.conf"
    config.write_text(NGINX.format(d=tmp_path, port=port, url=live_server.url))
    with running([program("nginx"), "-e", str(tmp_path / "error.log"), "-c", str(config)], port):
        yield port


@pytest.fixture
def haproxy(live_server: LiveServer, tmp_path: Path) -> Iterator[int]:
    port, config = free_port(), tmp_path / "haproxy.cfg"
    config.write_text(HAPROXY.format(port=port, endpoint=live_server.endpoint))
    with running([program("haproxy"), "-db", "-f", str(config)], port):
        yield port


def post(port: int, token: str, size: int) -> tuple[int, str]:
    """Send a ConfigMap with so many bytes through nginx. Return the status, and the message of the Status."""
    body = json.dumps({"kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"a": "x" * size}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", CONFIG_MAPS, body, headers)
        reply = connection.getresponse()
        return reply.status, str(json.loads(reply.read()).get("message"))
    finally:
        connection.close()


async def administrator(client: ClusterClient) -> str:
    """Return a token of an administrator."""
    group, name = "rbac.authorization.k8s.io", f"behind-a-proxy-{token_hex(4)}"
    await client.create("serviceaccounts", {"metadata": {"namespace": "default", "name": name}})
    await client.create(
        "clusterrolebindings",
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}],
        },
    )
    asked = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}}
    return str(
        (await client.post_path(PATHS["serviceaccounts"].path("default", name, "token"), asked))["status"]["token"]
    )


def test_nginx_passes_on_a_reply_that_comes_before_the_body_is_read(live_server: LiveServer, nginx: int) -> None:
    assert post(nginx, "not.a.token", 2_900_000) == (401, "Unauthorized")
    token = live_server.run(administrator)
    assert post(nginx, token, 4_000_000) == (413, "Request entity too large: limit is 3145728")


def test_a_watch_through_nginx_is_not_cut_into_chunks(live_server: LiveServer, nginx: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nginx, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {live_server.run(administrator)}"}
        connection.request("GET", "/api/v1/namespaces?watch=true&timeoutSeconds=1", headers=headers)
        events = [json.loads(line)["type"] for line in connection.getresponse().read().splitlines()]
    finally:
        connection.close()
    assert "ADDED" in events


def test_haproxy_finds_the_server_ready_and_passes_requests(live_server: LiveServer, haproxy: int) -> None:
    context = ssl.create_default_context(cadata=live_server.ca_pem.decode())

    def status() -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", haproxy, context=context, timeout=60)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status
        except OSError:  # before the first check HAProxy has no server
            return 0
        finally:
            connection.close()

    eventually(lambda: status() == 200)
