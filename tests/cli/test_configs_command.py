"""`flashgen configs`: list, show, check, diff and merge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.compiler.toolchain import toolchain_of
from flashgen.store.files import read_tuned
from tests.cli.conftest import Cli
from tests.kernels.emission import spec_of
from tests.tuned import entry_of, usual_entries, write_configs

CAUSAL = spec_of("causal", "bf16", 64)


def test_list(cli: Cli, configs: Path) -> None:
    done = cli("configs", "list", "--configs", configs)
    assert done.code == 0
    lines = [line.split()[:4] for line in done.out.splitlines() if "nvidia-h200" in line]
    assert lines == [["nvidia-h200", "backward", "8", "8"], ["nvidia-h200", "forward", "8", "8"]]
    document = cli("configs", "list", "--configs", configs, "--json").document
    assert [(each["gpu"], each["op"], each["rules"], each["measured"]) for each in document] == [
        ("nvidia-h200", "backward", 8, 8),
        ("nvidia-h200", "forward", 8, 8),
        ("portable", "backward", 8, 0),
        ("portable", "forward", 8, 0),
    ]


def test_show_marks_predictions(cli: Cli, configs: Path) -> None:
    assert "~" not in cli("configs", "show", "h200", "--configs", configs).out
    assert "~90 us" in cli("configs", "show", "portable", "--configs", configs).out
    both = cli("configs", "show", "--configs", configs, "--json").document
    assert [(each["gpu"], each["op"]) for each in both] == [
        (gpu, op) for gpu in ("nvidia-h200", "portable") for op in ("backward", "forward")
    ]
    shown = cli("configs", "show", "h200", "--configs", configs).out
    assert "forward-bf16-d64-causal " in shown
    assert "backward-bf16-d64-causal " in shown


def test_show_a_gpu_without_rules(cli: Cli, configs: Path) -> None:
    done = cli("configs", "show", "b200", "--configs", configs)
    assert done.code == 2
    assert "has no rules for nvidia-b200; it has those of: nvidia-h200, portable" in done.err


def test_no_such_directory(cli: Cli, tmp_path: Path) -> None:
    done = cli("configs", "list", "--configs", tmp_path / "none")
    assert done.code == 2
    assert "is no directory" in done.err


def test_check_exits_6_for_other_templates(cli: Cli, configs: Path) -> None:
    done = cli("configs", "check", "--configs", configs)
    assert done.code == 6
    assert "32 rules were made with other kernels than today's templates write" in done.out
    assert [line.split()[1:4] for line in done.out.splitlines() if "portable" in line] == [
        ["backward", "stale", "8"],
        ["forward", "stale", "8"],
    ]


def test_check_lists_other_tools_and_exits_0(cli: Cli, tmp_path: Path, shipped: Path) -> None:
    here = replace(toolchain_of(entry_of(CAUSAL)), triton="3.5.0")
    write_configs(tmp_path, "nvidia-h200", entry_of(CAUSAL, toolchain=here))
    done = cli("configs", "check", "--configs", tmp_path)
    assert done.code == 0
    assert "other tools" in done.out
    assert "triton: 3.5.0 ->" in done.out


def test_check_of_what_is_current(cli: Cli, tmp_path: Path, shipped: Path) -> None:
    write_configs(tmp_path, "nvidia-h200", entry_of(CAUSAL, toolchain=toolchain_of(entry_of(CAUSAL))))
    done = cli("configs", "check", "--configs", tmp_path, "--json")
    (file,) = done.document["files"]
    assert (done.code, file["gpu"], file["op"], file["state"]) == (0, "nvidia-h200", "forward", "ok")


def test_check_names_every_malformed_file(cli: Cli, configs: Path) -> None:
    for gpu in ("nvidia-h200", "portable"):
        path = configs / gpu / "forward.yaml"
        path.write_text(path.read_text().replace("kind:", "kid:"))
    done = cli("configs", "check", "--configs", configs)
    assert done.code == 2
    for gpu in ("nvidia-h200", "portable"):
        assert f"{configs / gpu / 'forward.yaml'}:" in done.out


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    old = write_configs(tmp_path / "old", "nvidia-h200", *usual_entries(64))
    new = write_configs(tmp_path / "new", "nvidia-h200", entry_of(CAUSAL, BLOCK_M=128), *usual_entries(128))
    return old, new


def test_diff(cli: Cli, two: tuple[Path, Path]) -> None:
    done = cli("configs", "diff", *two)
    assert done.code == 0
    assert "~ forward-bf16-d64-causal seqlen_k 1..: config.BLOCK_M: 64 -> 128" in done.out.splitlines()
    assert "- forward-bf16-d64-full" in done.out
    assert "+ forward-bf16-d128-full" in done.out
    assert cli("configs", "diff", *two, "--exit-code").code == 6
    assert cli("configs", "diff", two[0], two[0], "--exit-code").out == "equal\n"


def test_merge(cli: Cli, two: tuple[Path, Path]) -> None:
    old, new = two
    done = cli("configs", "merge", old, new, "--out", old)
    merged = read_tuned(old)
    assert done.code == 0
    assert len(merged.entries) == 8
    assert next(e for e in merged.entries if e.spec == CAUSAL).config.BLOCK_M == 128
    assert f"{old}: 8 rules written" in done.out


def test_merge_over_a_third_file(cli: Cli, two: tuple[Path, Path], tmp_path: Path) -> None:
    third = tmp_path / "third.yaml"
    third.write_text("mine")
    assert cli("configs", "merge", *two, "--out", third).code == 2
    assert third.read_text() == "mine"


def test_merge_of_two_gpus(cli: Cli, configs: Path, tmp_path: Path) -> None:
    paths = configs / "nvidia-h200" / "forward.yaml", configs / "portable" / "forward.yaml"
    done = cli("configs", "merge", *paths, "--out", tmp_path / "merged.yaml")
    assert done.code == 2
    assert "cannot merge" in done.err
