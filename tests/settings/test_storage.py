"""Settings of the store: data directory, driver, and etcd."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.settings.storage import StorageSettings

MEMBERS = ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]
URL = "etcd:https://10.0.0.1:2379,https://10.0.0.2:2379"


@pytest.mark.parametrize(
    ("values", "url", "in_data_dir", "in_memory"),
    [
        pytest.param(
            {"data_dir": "/var/lib/mooring/"}, "sqlite:/var/lib/mooring/mooring.db", True, False, id="default"
        ),
        pytest.param({"storage": "memory:"}, "memory:", False, True, id="memory"),
        pytest.param({"storage": URL}, URL, False, False, id="etcd by its URL"),
        pytest.param({"etcd_servers": MEMBERS}, URL, False, False, id="etcd by kube-apiserver's flag"),
    ],
)
def test_the_store_of_settings(values: dict[str, Any], url: str, in_data_dir: bool, in_memory: bool) -> None:
    settings = StorageSettings.read(values)
    assert (settings.storage_url, settings.is_in_data_dir, settings.in_memory) == (url, in_data_dir, in_memory)


def test_slashes_at_the_end_and_empty_items_do_not_count() -> None:
    settings = StorageSettings.read({"etcd_servers": ["http://10.0.0.1:2379/", " "], "etcd_prefix": "/registry/"})
    assert settings.etcd_servers == ("http://10.0.0.1:2379",)
    assert settings.etcd_prefix == "/registry"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        pytest.param({"etcd_servers": ["10.0.0.1:2379"]}, "give client URLs of etcd members", id="no scheme"),
        pytest.param({"etcd_servers": ["https://10.0.0.1"]}, "give client URLs of etcd members", id="no port"),
        pytest.param({"etcd_servers": ["https://[::1:2379"]}, "give client URLs of etcd members", id="no address"),
        pytest.param({"etcd_servers": ["https://10.0.0.1:2379/v3"]}, "a scheme, a host and a port only", id="a path"),
        pytest.param({"etcd_servers": ["https://u:secret@a:2379"]}, "see --etcd-username", id="a password"),
        pytest.param(
            {"etcd_servers": ["http://a:2379", "https://b:2379"]}, "give URLs of one scheme", id="two schemes"
        ),
        pytest.param({"storage": "etcd:https://u:secret@a:2379"}, "see --etcd-username", id="a password in --storage"),
        pytest.param({"storage": "etcd: ,"}, "etcd: needs client URLs", id="etcd without a member"),
        pytest.param({"storage": "memory:x"}, "takes nothing after the colon", id="memory with a name"),
        pytest.param({"storage": "sqlite:"}, "sqlite: needs the path of a file", id="sqlite without a path"),
        pytest.param({"storage": "sqlite:mysql://u:secret@a/b"}, "sqlite: needs the path", id="sqlite with a URL"),
        pytest.param({"storage": "mysql://u:secret@a/b"}, "must start with one of etcd:, memory:, sqlite:", id="k3s's"),
        pytest.param({"storage": "/a/b"}, "must start with one of", id="a path alone"),
        pytest.param({"etcd_prefix": "registry"}, "a path that starts with a slash", id="prefix without a slash"),
        pytest.param({"etcd_prefix": "//"}, "a path that starts with a slash", id="prefix of slashes"),
        pytest.param({"etcd_servers": MEMBERS, "storage": "memory:"}, "not both", id="two stores"),
        pytest.param({"etcd_certfile": "a.crt"}, "needs both --etcd-certfile and", id="a certificate without a key"),
        pytest.param({"etcd_username": "a"}, "needs both --etcd-username and", id="a user without a password"),
    ],
)
def test_settings_that_are_refused(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as refused:
        StorageSettings.read(values)
    assert "secret" not in str(refused.value)
