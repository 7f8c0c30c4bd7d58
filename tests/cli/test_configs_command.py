"""`flashgen configs`: list, show, check, portability, diff and merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashgen.bench import retime
from flashgen.compiler import drift, portability
from flashgen.compiler.crosscompile import Unit
from flashgen.compiler.toolchain import toolchain_of
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.resolve import Resolution
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Measurement, Reason, Rejected, Resources
from flashgen.spec import AttentionSpec
from flashgen.store.entry import TunedEntry
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
def compiler(monkeypatch: pytest.MonkeyPatch) -> dict[str, Resources | Rejected]:
    """What becomes of a spec's rule on every GPU, by the spec's key; all else becomes what `entry_of` records."""
    answers: dict[str, Resources | Rejected] = {}

    def compile_units(
        units: Sequence[Unit], target: GpuTarget, jobs: int
    ) -> Iterator[tuple[int, Resources | Rejected]]:
        for index, unit in enumerate(units):
            yield index, answers.get(unit.spec.key, entry_of(CAUSAL).resources)

    for module in (drift, portability):
        monkeypatch.setattr(module, "compile_units", compile_units)
        monkeypatch.setattr(module, "missing_compiler", lambda target, jobs: None)
    return answers


def current(spec: AttentionSpec, **changes: Any) -> TunedEntry:
    """A rule that was made with the tools that are here."""
    entry = entry_of(spec, **changes)
    return replace(entry, toolchain=toolchain_of(entry))


FULL = spec_of("full", "bf16", 64)


def test_check_compiles_nothing_unless_it_is_asked_to(cli: Cli, tmp_path: Path, shipped: Path) -> None:
    write_configs(tmp_path, "nvidia-h200", current(CAUSAL))
    document = cli("configs", "check", "--configs", tmp_path, "--json").document
    assert (document["recompiled"], document["retimed"]) == (None, None)


def test_check_of_one_gpu(cli: Cli, configs: Path) -> None:
    files = cli("configs", "check", "--configs", configs, "--gpu", "h200", "--json").document["files"]
    assert [(each["gpu"], each["op"]) for each in files] == [("nvidia-h200", "backward"), ("nvidia-h200", "forward")]
    assert cli("configs", "check", "--configs", configs, "--gpu", "b200").code == 2


def test_compiled_rules_that_are_as_recorded(
    cli: Cli, tmp_path: Path, shipped: Path, compiler: dict[str, Resources | Rejected]
) -> None:
    write_configs(tmp_path, "nvidia-h200", current(CAUSAL), current(FULL))
    done = cli("configs", "check", "--configs", tmp_path, "--compile")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "2 rules compiled: 2 as recorded"
    assert "then" not in done.out


def test_drift_with_triton_is_shown_and_exits_0(
    cli: Cli, tmp_path: Path, shipped: Path, compiler: dict[str, Resources | Rejected]
) -> None:
    older = current(CAUSAL)
    older = replace(older, toolchain=replace(older.toolchain, triton="3.5.0"))
    write_configs(tmp_path, "nvidia-h200", older, current(FULL))
    compiler[CAUSAL.key] = replace(older.resources, registers=144)
    done = cli("configs", "check", "--configs", tmp_path, "--compile")
    assert done.code == 0
    (row,) = [" ".join(line.split()) for line in done.out.splitlines() if "registers" in line]
    assert row == "nvidia-h200 forward-bf16-d64-causal seqlen_k 1.. drifted registers 128 144"
    assert done.out.splitlines()[-1] == "2 rules compiled: 1 as recorded, 1 drifted"


@pytest.mark.parametrize(
    ("now", "state", "why"),
    [
        ({"shared_bytes": 232449}, "exceeds", "needs 232449 bytes of shared memory, nvidia-h200 has 232448"),
        ({"spill_bytes": 200}, "spills", "spills 200 bytes a thread at 128 registers, limit 128"),
        ({"registers": 96}, "differs", "made it and compiles it otherwise"),
        (None, "refused", "sm_90: PassManager::run failed"),
    ],
)
def test_a_rule_that_no_longer_holds_exits_6_and_is_named(
    now: dict[str, int] | None,
    state: str,
    why: str,
    cli: Cli,
    tmp_path: Path,
    shipped: Path,
    compiler: dict[str, Resources | Rejected],
) -> None:
    rule = current(CAUSAL)
    write_configs(tmp_path, "nvidia-h200", rule, current(FULL))
    compiler[CAUSAL.key] = (
        Rejected(reason=Reason.COMPILE, detail="PassManager::run failed")
        if now is None
        else replace(rule.resources, **now)
    )
    done = cli("configs", "check", "--configs", tmp_path, "--compile")
    assert done.code == 6
    (row,) = [line for line in done.out.splitlines() if f"{rule.label}   {state}" in line]
    assert row.startswith(" nvidia-h200 ")
    (line,) = [line for line in done.out.splitlines() if why in line]
    assert line.startswith(f"nvidia-h200 {rule.label}: ")
    document = cli("configs", "check", "--configs", tmp_path, "--compile", "--json").document
    assert set(document) == {"toolchain", "files", "recompiled", "retimed"}
    found = {each["rule"]: each for each in document["recompiled"]}[rule.label]
    assert set(found) == {"gpu", "rule", "config", "state", "holds", "why", "then", "now"}
    assert (found["gpu"], found["state"], found["holds"]) == ("nvidia-h200", state, False)
    assert found["then"]["shared_bytes"] == rule.resources.shared_bytes
    assert (found["now"] is None) == (now is None)


def test_an_edited_figure_exits_6(
    cli: Cli, tmp_path: Path, shipped: Path, compiler: dict[str, Resources | Rejected]
) -> None:
    path = write_configs(tmp_path, "nvidia-h200", current(CAUSAL), current(FULL))
    assert cli("configs", "check", "--configs", tmp_path, "--compile").code == 0
    path.write_text(path.read_text().replace("registers: 128", "registers: 120", 1))
    done = cli("configs", "check", "--configs", tmp_path, "--compile")
    assert done.code == 6
    (row,) = [" ".join(line.split()) for line in done.out.splitlines() if "registers" in line]
    assert row == "nvidia-h200 forward-bf16-d64-full seqlen_k 1.. differs registers 120 128"


def test_rules_of_a_gpu_that_is_not_known_are_left_out(
    cli: Cli, tmp_path: Path, shipped: Path, compiler: dict[str, Resources | Rejected]
) -> None:
    write_configs(tmp_path, "nvidia-z1", current(CAUSAL))
    done = cli("configs", "check", "--configs", tmp_path, "--compile")
    assert done.code == 0
    assert "the forward rules of nvidia-z1 were not compiled: no GPU is known as 'nvidia-z1'" in done.err
    assert done.out.splitlines()[-1] == "0 rules compiled"


def test_times_need_the_gpu(cli: Cli, configs: Path) -> None:
    done = cli("configs", "check", "--configs", configs, "--time")
    assert done.code == 3
    assert "a GPU is required" in done.err


@pytest.mark.parametrize(("us", "margin", "pace", "code"), [(109, "5", "slower", 6), (109, "10", "as recorded", 0)])
def test_slower_rules_exit_6_and_are_named(
    us: float, margin: str, pace: str, code: int, cli: Cli, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = current(CAUSAL)
    write_configs(configs, "nvidia-h200", here)
    write_configs(configs, "nvidia-h200", op="backward")
    target = find_gpu("h200")
    found = Measurement(median_us=us, low_us=us, high_us=us, samples=24)
    monkeypatch.setattr(retime, "clocked_on", lambda target, index: lambda entry, workload: found)
    monkeypatch.setattr(
        "flashgen.hardware.resolve.resolve", lambda gpu, require_gpu: Resolution(target=target, present=True, index=0)
    )
    asked = ("configs", "check", "--configs", configs, "--gpu", "h200", "--time", "--margin", margin)
    done = cli(*asked)
    assert done.code == code
    assert f"1.090   {pace}" in done.out
    (timed,) = cli(*asked, "--json").document["retimed"]
    assert (timed["rule"], timed["pace"], timed["then_us"], timed["now"]["median_us"]) == (here.label, pace, 100.0, us)


def test_portability_of_a_file(
    cli: Cli, tmp_path: Path, shipped: Path, compiler: dict[str, Resources | Rejected]
) -> None:
    path = write_configs(tmp_path, "nvidia-l4", current(CAUSAL), current(FULL))
    compiler[CAUSAL.key] = replace(entry_of(CAUSAL).resources, shared_bytes=114688)
    compiler[FULL.key] = replace(entry_of(FULL).resources, spill_bytes=8)
    asked = ("configs", "portability", path, "--gpu", "l4", "--gpu", "rtx-4090", "--gpu", "h200", "--gpu", "t4")
    done = cli(*asked)
    assert done.code == 6
    rows = {line.split()[1]: line.split()[4:] for line in done.out.splitlines() if line.startswith(" nvidia-l4")}
    assert rows == {
        FULL.key: ["spills", "8", "spills", "8", "unsupported"],
        CAUSAL.key: ["exceeds:", "114688", "fits", "unsupported"],
    }
    assert f"nvidia-l4 {CAUSAL.key} seqlen_k 1..: does not run on nvidia-l4: needs 114688 bytes" in done.out
    assert "nvidia-t4: unsupported, 2 of 2 rules: nvidia-t4 is sm_75; triton has tensor-core code" in done.out
    document = cli(*asked, "--json").document
    assert document["gpus"]["nvidia-l4"] == {"arch": "sm_89", "limit_bytes": 101376}
    exceeding = {rule["spec"]: rule for rule in document["rules"]}[CAUSAL.key]
    assert set(exceeding) == {"for", "rule", "spec", "gpus", "broken"}
    assert (exceeding["for"], exceeding["broken"]) == ("nvidia-l4", ["nvidia-l4"])
    assert exceeding["gpus"]["nvidia-h200"]["verdict"] == "fits"
    assert exceeding["gpus"]["nvidia-geforce-rtx-4090"] == {
        "verdict": "exceeds",
        "runs": False,
        "why": "needs 114688 bytes of shared memory, nvidia-geforce-rtx-4090 has 101376",
        "resources": {"shared_bytes": 114688, "registers": 128, "spill_bytes": 0, "num_warps": 4},
    }
    assert cli("configs", "portability", path, "--gpu", "h200").code == 0  # what it exceeds is no column


def test_portability_of_one_config(cli: Cli, compiler: dict[str, Resources | Rejected]) -> None:
    compiler["forward-fp16-d64-causal"] = replace(entry_of(CAUSAL).resources, shared_bytes=114688)
    knobs = "BLOCK_M=128,BLOCK_N=64,num_warps=8,num_stages=3"
    asked = ("configs", "portability", "--spec", "forward-fp16-d64-causal", "--config", knobs, "--gpu")
    done = cli(*asked, "l4", "--json")
    (rule,) = done.document["rules"]
    assert done.code == 0  # it is for no GPU in particular
    assert (rule["for"], rule["broken"], rule["gpus"]["nvidia-l4"]["verdict"]) == (None, [], "exceeds")
    assert cli("configs", "portability", "--config", knobs).code == 2
    done = cli("configs", "portability", "--spec", "fp16-d64", "--config", knobs)
    assert done.code == 2
    assert "'fp16-d64' is no OP-DTYPE-dN-MASK" in done.err


def test_portability_of_a_module_is_that_of_its_own_kernels(cli: Cli, configs: Path, tmp_path: Path) -> None:
    """By the real compiler: what the module holds need not be what today's templates write."""
    path = tmp_path / "flash_attention.py"
    emitted = ("emit", "--gpu", "h200", "--configs", configs, "--op", "forward", "--head-dim", 64, "--no-window")
    assert cli(*emitted, "--out", path).code == 0
    path.write_text(path.read_text().replace("BLOCK_N=32", "BLOCK_N=64"))
    done = cli("configs", "portability", path, "--gpu", "h200", "--json")
    assert done.code == 0
    assert [rule["for"] for rule in done.document["rules"]] == ["nvidia-h200"] * 2 + ["portable"] * 2
    for rule in done.document["rules"]:
        assert "x64, " in rule["rule"]
        fit = rule["gpus"]["nvidia-h200"]
        assert (fit["verdict"], fit["runs"]) == ("fits", True)
        # Two stages of K and V, 64 rows of 64 columns of two bytes each, at least.
        assert fit["resources"]["shared_bytes"] >= 2 * 2 * 64 * 64 * 2


def test_portability_of_what_is_no_module(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text("x = 1\n")
    done = cli("configs", "portability", path)
    assert done.code == 1
    assert "is no emitted module" in done.err


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
