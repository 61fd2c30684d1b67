"""What only the repository measures: `make bench` puts floors, rival layouts and throw-away servers beside `headrace bench`."""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[1] / "tests")
if _TESTS not in sys.path:
    # The throw-away servers belong to the tests.
    sys.path.append(_TESTS)
