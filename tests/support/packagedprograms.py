"""Programs that packages of npm carry as archives: releases of kubectl and Helm.

Rules kept here: `.ci/run` installs the packages in `tests/support/npmclients` and unpacks them once, before any test, by
`python -m tests.support.packagedprograms`. A test that needs a program that is not there is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "npmclients"
LAYERS = FOLDER / "node_modules/@aws-cdk"
UNPACKED = FOLDER / "node_modules/.programs"
INSTALL = "npm ci in tests/support/npmclients, then python -m tests.support.packagedprograms"


def programs(name: str) -> Sequence[Path]:
    """Return every unpacked program of this name, `kubectl` or `helm`, in the order of their packages."""
    return sorted(path for path in UNPACKED.glob(f"*/{name}") if os.access(path, os.X_OK))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the programs of one archive. Each appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            if member.is_dir():
                continue
            target = folder / Path(member.filename).name
            part = target.with_suffix(".part")
            with content.open(member) as source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
            part.chmod(0o755)
            part.replace(target)


def main() -> int:
    archives = sorted(LAYERS.glob("lambda-layer-kubectl-*/lib/layer.zip"))
    if not archives:
        sys.stderr.write(f"{LAYERS} has no packages: run npm ci in {FOLDER}\n")
        return 1
    for archive in archives:
        unpack(archive, UNPACKED / archive.parents[1].name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
