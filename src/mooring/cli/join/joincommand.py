"""Join command: the command line that `init`, `up` and `token create` print for a joining machine.

Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): one hash flag for each CA; `<value withheld>` in
place of a withheld token; no quoting is needed in a shell.
"""

from __future__ import annotations

from collections.abc import Sequence

WITHHELD = "<value withheld>"


def join_line(program: str, endpoints: Sequence[str], token: str, pins: Sequence[str]) -> str:
    """Return `<program> join HOST:PORT… --token T --discovery-token-ca-cert-hash sha256:…`."""
    hashes = "".join(f" --discovery-token-ca-cert-hash {pin}" for pin in pins)
    return f"{program} join {' '.join(endpoints)} --token {token}{hashes}"
