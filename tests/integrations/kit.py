"""How the tests load an example as if it had just been started."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def load(name: str) -> Any:
    """The module examples/<name>.py, anew."""
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as workers import it: tasks are named by it
    spec.loader.exec_module(module)
    return module
