"""Join lines: the command lines that let a machine join, as `init`, `up`, `token create` and `certs ca` print them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands, docs/protocol/k3s.md#token-commands): one hash
# flag for each CA, or the hash in the token; `<value withheld>` in place of a withheld token. The brackets of an IPv6 address are
# a pattern in a shell, and are quoted; nothing else needs it.

WITHHELD = "<value withheld>"


def join_line(program: str, endpoints: Sequence[str], token: str, pins: Sequence[str]) -> str:
    """Return `<program> join HOST:PORT… --token T --discovery-token-ca-cert-hash sha256:…`."""
    hashes = "".join(f" --discovery-token-ca-cert-hash {pin}" for pin in pins)
    return f"{program} join {shlex.join(endpoints)} --token {token}{hashes}"


def agent_line(program: str, endpoints: Sequence[str], token: str) -> str:
    """Return `<program> agent --server https://HOST:PORT… --token T`, for a token of k3s's format."""
    servers = "".join(f" --server {shlex.quote(f'https://{endpoint}')}" for endpoint in endpoints)
    return f"{program} agent{servers} --token {token}"
