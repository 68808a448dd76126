"""The document of `/v1-k3s/encrypt/status`: encryption of Secrets, in the words of k3s.

Rules kept here (docs/protocol/k3s.md#encryption-status):
* The first key writes and is the active one; the others only read. A provider without keys of its own is named by its kind.
* Two stages are told apart: `start`, when a change of keys may begin, and `rotate`, while values of another key than the active one
  exist. k3s's other stages are steps of its own command, which has no effect here.
* Without a configuration the answer is that of k3s without its file: empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from mooring.apimachinery.schema import Obj
from mooring.trust.encryption.configuration import AESCBC, AESGCM, IDENTITY, KMS, SECRETBOX, EncryptionProvider

START, ROTATE = "start", "rotate"
_NAMES: Mapping[str, str] = {AESCBC: "AES-CBC", AESGCM: "AES-GCM", SECRETBOX: "XSalsa20-POLY1305", KMS: "KMS"}


def encryption_status(providers: Sequence[EncryptionProvider], stale: int, hashes: Collection[str]) -> Obj:
    """Return the document.

    `providers` are those of Secrets, `stale` is the number of values that another key than the first has written, and `hashes` are
    those of the configurations of all servers.
    """
    if not providers:
        return {"stage": "", "activekey": ""}
    writes = providers[0].kind != IDENTITY
    keys = list(_keys(providers))
    status: Obj = {
        "stage": ROTATE if stale else START,
        "activekey": keys[0] if writes and keys else "",
        "enable": writes,
    }
    if len(set(hashes)) <= 1:
        status["hashmatch"] = True
    else:
        status["hasherror"] = "the servers use different encryption configurations"
    if inactive := keys[1:] if writes else keys:
        status["inactivekeys"] = inactive
    return status


def _keys(providers: Sequence[EncryptionProvider]) -> Iterator[str]:
    for provider in providers:
        if provider.plugin is not None:
            yield f"{_NAMES[provider.kind]} {provider.plugin.name}"
        for key in provider.keys:
            yield f"{_NAMES[provider.kind]} {key.name}"
