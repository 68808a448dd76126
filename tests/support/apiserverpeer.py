"""Answers of an API server to the anonymous requests of a join: its version and cluster-info, signed by tokens."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from email.utils import format_datetime

from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.pins import pins_of
from tests.support.peer import Answer, ReceivedRequest, Reply
from tests.support.testca import ThrowawayCA

TOKEN = "abcdef.1123456789abcdef"
VERSION = json.dumps({"major": "1", "minor": "34", "gitVersion": "v1.34.0"}).encode()


def cluster_info(ca: ThrowawayCA, server: str, *tokens: str) -> bytes:
    """Return cluster-info that the tokens sign."""
    config_map = clusterinfo.config_map(server, ca.certificate_pem)
    now = datetime.now(UTC)
    secrets = [tokensecret.to_secret(tokensecret.new_record(parse_token(one), now)) for one in tokens]
    return json.dumps(clusterinfo.signed(config_map, secrets, now) or config_map).encode()


def api_server(ca: ThrowawayCA, *tokens: str, now: datetime | None = None, more: Answer | None = None) -> Answer:
    """Answer as an API server does to anonymous requests for its version and for cluster-info."""

    def answer(asked: ReceivedRequest) -> Reply:
        headers = {"Date": format_datetime(now, usegmt=True)} if now is not None else {}
        if asked.path == "/version":
            return Reply(200, VERSION, headers)
        if asked.path == clusterinfo.PATH:
            return Reply(200, cluster_info(ca, "https://" + asked.headers["Host"], *tokens), headers)
        if more is not None:
            return more(asked)
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "code": 401,
            "reason": "Unauthorized",
            "message": "Unauthorized",
        }
        return Reply(401, json.dumps(status).encode(), headers)

    return answer


def pin(ca: ThrowawayCA) -> str:
    return str(pins_of(ca.certificate_pem)[0])


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
