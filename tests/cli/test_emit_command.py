"""`flashgen emit`: what it writes, what it refuses to overwrite, and what it finds to be out of date."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from flashgen.spec import OPS
from tests.cli.conftest import Cli
from tests.kernels.emission import spec_of
from tests.tuned import entry_of, usual_entries, write_configs


def emit(cli: Cli, configs: Path, *arguments: object) -> tuple[int, str, str]:
    done = cli("emit", "--gpu", "h200", "--configs", configs, *arguments)
    return done.code, done.out, done.err


def test_writes_to_stdout_or_a_file_the_same_bytes(cli: Cli, configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "attention.py"
    code, text, _ = emit(cli, configs)
    assert code == 0
    ast.parse(text)
    code, said, _ = emit(cli, configs, "--out", out)
    assert (code, out.read_text()) == (0, text)
    assert said == f"{out}: written; 32 rules for nvidia-h200\n"


def test_the_header_says_what_remakes_it(cli: Cli, configs: Path) -> None:
    _, text, _ = emit(cli, configs, "--head-dim", 128, "--dtype", "bf16", "--no-softcap")
    assert "    flashgen emit --gpu h200 --head-dim 128 --dtype bf16 --no-softcap\n" in text
    assert str(configs) not in text
    assert "NVIDIA H200 (nvidia-h200, sm_90): 3 forward and 3 backward rules, measured" in text


def test_a_module_without_gradients(cli: Cli, configs: Path) -> None:
    _, whole, _ = emit(cli, configs, "--head-dim", 64)
    code, text, _ = emit(cli, configs, "--head-dim", 64, "--op", "forward")
    assert code == 0
    assert "    flashgen emit --gpu h200 --op forward --head-dim 64\n" in text
    assert "4 forward and 4 backward rules" in whole
    assert "4 forward rules" in text
    assert ("_attn_bwd" in whole, "_attn_bwd" in text) == (True, False)


def test_where_only_portable_backward_rules_are_missing_there_are_two_ways_on(cli: Cli, configs: Path) -> None:
    (configs / "portable" / "backward.yaml").unlink()
    code, out, error = emit(cli, configs, "--head-dim", 64)
    assert (code, out) == (2, "")
    assert "flashgen tune --gpu portable --op backward --head-dim 64 --dtype bf16 --dtype fp16 --out" in error
    assert "flashgen emit --op forward" in error
    assert emit(cli, configs, "--head-dim", 64, "--op", "forward")[0] == 0


def test_features_are_served_where_there_are_rules_for_them(cli: Cli, configs: Path) -> None:
    variants = ("full", "causal", "full_sink_dropout", "causal_sink_dropout")
    for op in OPS:
        write_configs(configs, "portable", *usual_entries(64, op=op, variants=variants), op=op)
    code, text, error = emit(cli, configs, "--head-dim", 64, "--no-window", "--feature", "dropout+sink")
    assert code == 0, error
    assert "flashgen emit --gpu h200 --head-dim 64 --no-window --feature sink+dropout\n" in text
    assert 'variant="causal_sink_dropout"' in text
    assert "nvidia-h200 has no rule for any number of keys of forward-bf16-d64-full-sink-dropout" in error


def test_order_and_spelling_of_gpus_change_nothing(cli: Cli, configs: Path) -> None:
    write_configs(configs, "nvidia-b200", *usual_entries(64))
    one = cli("emit", "--configs", configs, "--gpu", "b200", "--gpu", "NVIDIA H200").out
    other = cli("emit", "--configs", configs, "--gpu", "nvidia-h200", "--gpu", "b200", "--gpu", "h200").out
    assert one == other != ""


def test_an_emitted_file_is_replaced_and_left_alone_if_equal(cli: Cli, configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention.py"
    emit(cli, configs, "--out", out, "--no-window")
    assert emit(cli, configs, "--out", out)[1].startswith(f"{out}: written")
    assert emit(cli, configs, "--out", out)[1].startswith(f"{out}: up to date")


def test_a_foreign_file_needs_force(cli: Cli, configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.py"
    out.write_text("precious = 1\n")
    code, said, error = emit(cli, configs, "--out", out)
    assert (code, said, out.read_text()) == (2, "", "precious = 1\n")
    assert "was not emitted by flashgen" in error
    assert "--force" in error
    assert emit(cli, configs, "--out", out, "--force")[0] == 0
    assert "flash_attention" in out.read_text()


@pytest.mark.parametrize("below", ["file/attention.py", "file/deeper/attention.py"])
def test_an_unwritable_path(below: str, cli: Cli, configs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    code, _, error = emit(cli, configs, "--out", tmp_path / below)
    assert code == 2
    assert str(tmp_path / below) in error


def test_check_finds_drift_and_touches_nothing(cli: Cli, configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention.py"
    emit(cli, configs, "--out", out)
    assert emit(cli, configs, "--out", out, "--check")[:2] == (0, f"{out}: up to date; 32 rules for nvidia-h200\n")
    edited = out.read_text().replace("BLOCK_M=128", "BLOCK_M=64", 1)
    out.write_text(edited)
    code, said, error = emit(cli, configs, "--out", out, "--check")
    assert (code, said, out.read_text()) == (6, "", edited)
    changes = [line.strip() for line in error.splitlines() if re.match(r"  [-+] ", line)]
    assert len(changes) == 2
    assert "BLOCK_M=64" in changes[0]
    assert "BLOCK_M=128" in changes[1]


def test_check_of_a_missing_file_is_drift(cli: Cli, configs: Path, tmp_path: Path) -> None:
    code, _, error = emit(cli, configs, "--out", tmp_path / "none.py", "--check")
    assert code == 6
    assert "does not exist" in error


def test_a_long_difference_is_cut(cli: Cli, configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention.py"
    emit(cli, configs, "--out", out)
    out.write_text(out.read_text().replace("BLOCK_N", "BLOCK_X"))
    _, _, error = emit(cli, configs, "--out", out, "--check")
    assert re.search(r"\.\.\. \d+ more lines", error)
    assert len(error.splitlines()) < 60


def test_json(cli: Cli, configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention.py"
    done = cli("emit", "--gpu", "h200", "--configs", configs, "--out", out, "--json")
    assert done.document["changed"] is True
    assert done.document["gpus"] == {"nvidia-h200": {"pattern": "NVIDIA H200", "rules": 16}}
    assert done.document["command"] == "flashgen emit --gpu h200"
    bare = cli("emit", "--gpu", "h200", "--configs", configs, "--json")
    assert bare.document["text"] == out.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "h20"], ["no GPU is known as 'h20'", "h200"]),
        (["--gpu", "h200", "--head-dim", "0"], ["0 is not in the range"]),
        (["--gpu", "h200", "--head-dim", "300"], ["300 is not in the range"]),
        (["--gpu", "h200", "--dtype", "int8"], ["int8", "bf16"]),
        (["--gpu", "h200", "--op", "backward"], ["backward", "forward", "all"]),
        (["--gpu", "h200", "--feature", "rope"], ["--feature", "'rope' is not one of softcap, alibi, bias, sink"]),
        (["--gpu", "h200", "--no-window", "--feature", "softcap+sink"], ["softcap+sink needs the window kernels too"]),
        (
            ["--gpu", "h200", "--feature", "alibi"],
            ["forward-bf16-d64-full-alibi", "--dtype fp16 --feature alibi --out"],
        ),
        (["--gpu", "h200", "--check"], ["--out"]),
        (["--gpu", "h200", "--no-window", "--softcap"], ["--no-window"]),
        (["--gpu", "b200"], ["no tuned configs for nvidia-b200", "flashgen tune --gpu b200 --out"]),
        (
            ["--gpu", "h200", "--head-dim", "96"],
            ["forward-bf16-d96-full", "flashgen tune --gpu portable --head-dim 96"],
        ),
        (
            ["--gpu", "h200", "--dtype", "fp32"],
            ["forward-fp32-d64-full", "--gpu portable --head-dim 64 --head-dim 128"],
        ),
    ],
)
def test_bad_input_says_what_to_do(arguments: list[str], words: list[str], cli: Cli, configs: Path) -> None:
    done = cli("emit", "--configs", configs, *arguments)
    assert (done.code, done.out) == (2, "")
    for word in words:
        assert word in done.err


def test_malformed_configs_name_file_line_and_key(cli: Cli, configs: Path) -> None:
    path = configs / "nvidia-h200" / "forward.yaml"
    lines = path.read_text().splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if "num_warps" in line)
    lines[number - 1] = lines[number - 1].replace("num_warps: 8", "num_warps: yes", 1)
    path.write_text("\n".join(lines) + "\n")
    code, _, error = emit(cli, configs)
    assert code == 2
    assert f"{path}:{number}: entries[0].config.num_warps" in error


def test_shipped_configs_stand_in_and_that_is_said(cli: Cli, configs: Path, shipped: Path) -> None:
    path = write_configs(shipped, "nvidia-b200", *usual_entries(64))
    done = cli("emit", "--gpu", "b200", "--configs", configs)
    assert done.code == 0
    assert f"the rules for nvidia-b200 come from {path}" in done.err


def test_auto_without_a_gpu_warns_once_and_names_the_gpu(cli: Cli, configs: Path) -> None:
    write_configs(configs, "nvidia-h100", *usual_entries(64))
    done = cli("emit", "--configs", configs)
    assert done.code == 0
    assert done.err.count("warning:") == 1
    assert "emitting for nvidia-h100" in done.err
    assert "flashgen emit --gpu h100\n" in done.out


def test_portable_alone(cli: Cli, configs: Path) -> None:
    done = cli("emit", "--gpu", "portable", "--configs", configs)
    assert "TUNED = []" in done.out
    assert "flashgen emit --gpu portable\n" in done.out


def test_rules_of_other_templates_are_noted(cli: Cli, configs: Path) -> None:
    assert "8 of 8 rules were proven with other kernels" in emit(cli, configs)[2]


def test_a_gpu_that_no_table_has_but_the_configs_do(cli: Cli, configs: Path) -> None:
    write_configs(configs, "nvidia-geforce-rtx-4060", entry_of(spec_of("causal", "bf16", 64)))
    done = cli("emit", "--gpu", "NVIDIA GeForce RTX 4060", "--configs", configs)
    assert done.code == 0
    pattern = re.search(r'\(r"(.*)", NVIDIA_GEFORCE_RTX_4060\)', done.out)
    assert pattern
    assert re.fullmatch(pattern[1], "NVIDIA GeForce RTX 4060")
    assert not re.fullmatch(pattern[1], "NVIDIA GeForce RTX 4060 Ti")
    assert "nvidia-geforce-rtx-4060 has no rule" in done.err
