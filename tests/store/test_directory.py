"""A directory of tuned configs: which GPUs it has, and what a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.errors import TunedConfigError, UnknownGpu
from flashgen.store.directory import read_directory, rule_paths, slug_in
from flashgen.store.files import tuned_path, write_tuned


@pytest.fixture
def directory(tmp_path: Path, make_file, make_entry) -> Path:  # type: ignore[no-untyped-def]
    for gpu in ("nvidia-h200", "nvidia-geforce-rtx-4060"):
        write_tuned(tuned_path(tmp_path, gpu, "forward"), make_file(make_entry(), gpu=gpu))
    (tmp_path / "README.md").touch()
    return tmp_path


def test_files_of_all_gpus_or_of_one(directory: Path) -> None:
    assert [file.gpu for file in read_directory(directory).values()] == ["nvidia-geforce-rtx-4060", "nvidia-h200"]
    assert rule_paths(directory, "nvidia-h200") == (directory / "nvidia-h200" / "forward.yaml",)


def test_what_is_not_there(directory: Path) -> None:
    with pytest.raises(
        TunedConfigError, match="has no rules for nvidia-b200; it has those of: nvidia-geforce-rtx-4060, nv"
    ):
        rule_paths(directory, "nvidia-b200")
    with pytest.raises(TunedConfigError, match="is no directory"):
        rule_paths(directory / "none")


def test_a_file_in_another_place_is_refused(directory: Path) -> None:
    (directory / "nvidia-h200").rename(directory / "nvidia-b200")
    with pytest.raises(TunedConfigError, match="found nvidia-h200; this place is for nvidia-b200"):
        read_directory(directory)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("h200", "nvidia-h200"),
        ("NVIDIA B200", "nvidia-b200"),
        ("portable", "portable"),
        ("NVIDIA GeForce RTX 4060", "nvidia-geforce-rtx-4060"),
    ],
)
def test_names(name: str, slug: str, directory: Path) -> None:
    assert slug_in(directory, name) == slug


@pytest.mark.parametrize("name", ["rtx-4061", "", "..", "/"])
def test_names_of_nothing(name: str, directory: Path) -> None:
    with pytest.raises(UnknownGpu):
        slug_in(directory, name)
