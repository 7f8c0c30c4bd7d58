"""The model's loops carry what triton's frontend carries, of which these are the ttir's stores."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.gluon.carried import Loop, carrying_code


def follows(store, now, steps):
    last = now
    for _step in range(steps):
        store(last)
        last = now
        now = now + 1


def follows_from_elsewhere(store, now, steps):
    last = now - 1
    for _step in range(steps):
        store(last)
        last = now
        now = now + 1


@pytest.mark.parametrize(("kernel", "stored"), [(follows, [5, 5, 5]), (follows_from_elsewhere, [4, 5, 6])])
def test_a_name_that_follows_another_from_where_that_begins_stays(
    kernel: Callable[..., None], stored: list[int]
) -> None:
    seen: list[int] = []
    names: dict[str, Any] = {"Loop": Loop}
    types.FunctionType(carrying_code(kernel), names)(lambda value: seen.append(int(value)), torch.tensor(5), 3)
    assert seen == stored
