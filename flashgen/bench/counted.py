"""The process that Nsight Compute watches: warm-up, then one call of one contender between profiler start and stop.

python -m flashgen.bench.counted MODULE --suite paper --row KEY --contender NAME --device cuda:0
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashgen.bench.call import draw, prepare
from flashgen.bench.contenders import contenders
from flashgen.bench.suites import suite
from flashgen.compiler.load import load_file

_WARM_UP = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the call that the arguments name; everything it does before is out of the profiler's range."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("module", type=Path)
    for name in ("--suite", "--row", "--contender", "--device"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(arguments)
    row = next(row for row in suite(given.suite) if row.key == given.row)
    entered = contenders(load_file(given.module, "flashgen_benched"), given.suite, peers=True)
    contender = next(each for each in entered if each.name == given.contender)
    call = prepare(row, contender, draw(row, given.device)).call
    for _ in range(_WARM_UP):
        call()
    torch.cuda.synchronize(given.device)
    profiler: Any = torch.cuda.profiler
    profiler.start()
    call()
    torch.cuda.synchronize(given.device)
    profiler.stop()


if __name__ == "__main__":
    main()
