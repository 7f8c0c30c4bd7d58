"""A search that other processes may help with: announced to them, and over when what they had begun is over."""

from __future__ import annotations

import time

from flashgen.hardware.target import GpuTarget
from flashgen.tune.progress import Progress
from flashgen.tune.search import Limits, search
from flashgen.tune.stages import Stages
from flashgen.tune.study import Study


def search_together(study: Study, stages: Stages, target: GpuTarget, limits: Limits, progress: Progress) -> bool:
    """As `search`, with the help of whoever joins; what a process had begun that is gone is tried again.

    Raises:
        OutputError: the storage cannot be written.
    """
    with study.fleet.announced(study.name):
        try:
            while not search(study, stages, target, limits, progress):
                if not study.await_others(limits.deadline) or time.monotonic() >= limits.deadline:
                    return False
        except KeyboardInterrupt:
            pass
    return True
