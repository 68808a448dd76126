"""Configuration file of `join` and `agent`, in the form of k3s's, with its drop-ins: read with bounds, checked for other users.

Rules kept here (docs/protocol/k3s.md#configuration-file-of-an-agent):
* The drop-ins are the files `*.yaml` and `*.yml` of the directory `FILE.d`, by name. The file or one drop-in must be there when the
  file is named.
* Each file has a limit of bytes, and the directory one of files.
* A file that every user may write or replace is refused, and so is one that other users may read when it holds a secret. In the
  default place it must belong to root or to the user of this process, and so must every drop-in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mooring.client.files import exposure, os_reason, read_limited, refuse_other_writers
from mooring.errors import ConfigError
from mooring.settings.declaration import Setting
from mooring.trust.k3s.agentfile import AgentFile, read_agent_file

DEFAULT_CONFIG = "/etc/mooring/agent.yaml"
K3S_CONFIG = "/etc/rancher/k3s/config.yaml"
"""k3s's `--config`."""
MAX_BYTES = 1 << 20
"""Largest file: the flags of an agent have a few kB."""
MAX_DROP_INS = 64
SUFFIXES = (".yaml", ".yml")
URLS = ("http://", "https://")


def read(config: str, settings: Sequence[Setting], default: Path = Path()) -> AgentFile:
    """Return the flags of the file `config`, or of the default file, which may be missing. Raises ConfigError."""
    if config.startswith(URLS):
        raise ConfigError("--config: a URL is not fetched; save the file on this machine, and name it")
    path = Path(config) if config else default
    paths = _drop_ins(path)
    if _is_there(path) or (config and not paths):  # reading a named file that is missing reports it
        paths = [path, *paths]
    for path in paths:
        # a drop-in is not named: its owner could have made its directory beside a file in /tmp
        refuse_other_writers(path, "could send this machine to another server", named=path == Path(config))
    file = read_agent_file([(str(path), read_limited(path, MAX_BYTES)) for path in paths], settings)
    for secret_path, key in file.secrets.items():
        if Path(secret_path).is_file() and (problem := exposure(Path(secret_path))):
            raise ConfigError(f'{problem}, because it holds the secret "{key}"')
    return file


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {os_reason(error)}") from error
    return True


def _drop_ins(path: Path) -> list[Path]:
    """Return the drop-ins beside a file, by name. Raises ConfigError."""
    directory = path.with_name(f"{path.name}.d")
    try:
        with os.scandir(directory) as entries:
            names = sorted(one.name for one in entries if one.name.lower().endswith(SUFFIXES) and not one.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {os_reason(error)}") from error
    if len(names) > MAX_DROP_INS:
        raise ConfigError(f"{directory} has more than {MAX_DROP_INS} drop-ins; is it the right directory?")
    return [directory / name for name in names]
