"""Build hook: records the git commit in wheels and source archives (src/mooring/build.py reads it)."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the file with the commit, except where the source has it already, and to an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package = Path(self.root) / "src/mooring"
        build = runpy.run_path(str(package / "build.py"))
        commit = build["commit_of"](package)
        if version == "editable" or not commit or (package / build["RECORD"]).exists():
            return
        self.written = tempfile.TemporaryDirectory()  # until the builder has read it
        record = Path(self.written.name) / build["RECORD"]
        record.write_text(f"{commit}\n")
        place = "src/mooring" if self.target_name == "sdist" else "mooring"
        build_data["force_include"][str(record)] = f"{place}/{record.name}"
