"""Files of CAs: an empty one is not an absent one."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.trust.httpsurl import named_cas
from mooring.trust.kubeconfig import Cluster, KubeconfigError, flatten_cluster

EMPTY = r'"/etc/ca.crt" is empty: without a CA every CA of this machine would be trusted'


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\t"])
def test_an_empty_file_is_not_an_absent_one(content: bytes) -> None:
    with pytest.raises(ConfigError, match=EMPTY):
        named_cas(content, "/etc/ca.crt")


def test_other_content_is_judged_where_it_is_used() -> None:
    assert named_cas(b"CA", "/etc/ca.crt") == b"CA"


CLUSTER = Cluster("c", "https://a.test", ca_file="/etc/ca.crt")


def test_the_ca_of_a_kubeconfig() -> None:
    with pytest.raises(KubeconfigError, match=f"certificate-authority: {EMPTY}"):
        flatten_cluster(CLUSTER, lambda path: b"")
