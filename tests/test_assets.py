"""A checkout reads its own templates and configs, an installed wheel those it brought along."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen import assets
from flashgen.errors import FlashgenError


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    package = tmp_path / "flashgen"
    package.mkdir()
    monkeypatch.setattr(assets, "_PACKAGE", package)
    return package


def make(*directories: Path) -> None:
    for directory in directories:
        directory.mkdir()


def test_a_checkout_reads_its_own_even_beside_stale_copies(package: Path) -> None:
    make(
        package.parent / "templates",
        package / "_templates",
        package.parent / "tuned_configs",
        package / "_tuned_configs",
    )
    (package.parent / "pyproject.toml").touch()
    assert assets.templates_dir() == package.parent / "templates"
    assert assets.tuned_configs_dir() == package.parent / "tuned_configs"


def test_an_installed_wheel_reads_what_it_brought(package: Path) -> None:
    # A directory of that name in site-packages is somebody else's.
    make(package.parent / "templates", package / "_templates", package / "_tuned_configs")
    assert assets.templates_dir() == package / "_templates"
    assert assets.tuned_configs_dir() == package / "_tuned_configs"


def test_a_broken_installation_says_so(package: Path) -> None:
    with pytest.raises(FlashgenError, match=rf"no templates: {package}/_templates is missing; install flashgen again"):
        assets.templates_dir()
