"""Where kernels run: in Triton's interpreter, or on a GPU with `pytest -m gpu`. And the count of public cases."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.cases.tally import CaseTally
from tests.kernels.emission import Emitter

# How long a draw takes is the machine's doing, not the code's.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(id): shows that the public case `id` of tests/cases/cases.yaml is right")
    # Triton reads the variable when it is imported, so one process is either interpreted or compiled.
    wanted: str = config.getoption("markexpr", "")
    on_gpu = "gpu" in wanted and "not gpu" not in wanted
    os.environ.setdefault("TRITON_INTERPRET", "0" if on_gpu else "1")
    config.pluginmanager.register(CaseTally(), "case-tally")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    if os.environ["TRITON_INTERPRET"] == "1":
        pytest.skip("needs a GPU: run `pytest -m gpu` on a machine that has one")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: torch finds none here")


@pytest.fixture(scope="session")
def emitter(tmp_path_factory: pytest.TempPathFactory) -> Emitter:
    """Emits and imports modules, each once a session."""
    return Emitter(tmp_path_factory.mktemp("emitted"))
