"""The benchmarks are scripts: their folder is where they import from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
