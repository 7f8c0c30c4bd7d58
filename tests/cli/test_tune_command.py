"""`flashgen tune`, on a replayed table: what is printed, what is written and when, and how it exits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from flashgen.cli.tune_watch import TuneWatch, lines_of
from flashgen.codegen.rules import Case, rule_sets
from flashgen.compiler.known_bad import known_bad, note_bad
from flashgen.families import GluonSm90BackwardConfig
from flashgen.outcome import Proof, Reason, Rejected, Resources
from flashgen.resources.fit import HELD_OUT
from flashgen.spec import OPS
from flashgen.store.files import read_tuned
from flashgen.store.record import RuleFile
from flashgen.tune import run as running
from flashgen.tune.records import TrialRecord
from flashgen.tune.result import FunnelCounts, TuneResult
from flashgen.tune.stages import Candidate
from tests.cli.conftest import Cli
from tests.tune.replay import Replay, plain_proof, plain_resources, small_space, spec_of
from tests.tune.studies import outcome_of
from tests.tuned import usual_entries, write_configs

Table = Callable[..., Replay]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Puts a replayed table in the place of compiler, cost model and interpreter."""

    def install(**functions: Any) -> Replay:
        stages = Replay(kind="predicted", **functions)
        tune = partial(running.tune, make_stages=lambda _request, _workloads: stages)
        monkeypatch.setattr(running, "tune", tune)
        return stages

    return install


@pytest.fixture
def tune(cli: Cli, shipped: Path, tmp_path: Path) -> Callable[..., Any]:
    """One small search of forward kernels for an H200, which nothing is shipped for, into `tmp_path`/out."""
    small = ("--head-dim", 128, "--trials", 6, "--jobs", 1)
    return partial(cli, "tune", "--gpu", "h200", "--op", "forward", *small, "--out", tmp_path / "out")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "nvidia-h200" / "forward.yaml"


def test_prints_the_funnel_and_writes_the_rule(table: Table, tune: Cli, path: Path) -> None:
    table()
    done = tune("--dtype", "bf16", "--causal", "--no-window")
    (entry,) = read_tuned(path, gpu="nvidia-h200", op="forward").entries
    assert done.code == 0
    assert "6 tried > 6 compiled > 6 predicted > 1 exact > 1 best" in done.out
    assert f"best: {entry.config.key}" in done.out
    assert "TFLOP/s" in done.out
    assert f"{path}: 1 rules written" in done.out
    assert "predicted" in done.out
    assert done.err.count("warning:") == 1
    assert "results for nvidia-h200 are predicted" in done.err


def test_why_candidates_fell(table: Table, tune: Cli) -> None:
    def big_tiles_spill(candidate: Candidate) -> Resources | Rejected:
        spill_bytes = 500 if candidate.config.BLOCK_M > 64 else 0
        return Resources(shared_bytes=1000, registers=255, spill_bytes=spill_bytes, num_warps=4)

    table(resources=big_tiles_spill)
    done = tune("--dtype", "bf16", "--causal", "--no-window")
    assert "sram" in done.out
    assert "spills" in done.out


def test_what_no_kernel_should_do_is_named_with_a_config(table: Table, tune: Cli) -> None:
    def two_runs_differ(candidate: Candidate) -> Proof | Rejected:
        known = candidate.config.BLOCK_M == 64
        return plain_proof(candidate) if known else Rejected(reason=Reason.INEXACT, detail="two runs differ")

    table(proof=two_runs_differ)
    done = tune("--dtype", "bf16", "--causal", "--no-window")
    assert re.search(r"^  inexact, such as tl:BLOCK_M=\d+,.*: two runs differ$", done.out, re.MULTILINE)


def test_the_file_holds_the_command_that_makes_it_again(table: Table, tune: Cli, path: Path) -> None:
    table()
    tune("--dtype", "bf16", "--causal", "--no-window", "--seed", 3)
    expected = (
        "flashgen tune --gpu h200 --op forward --head-dim 128 --dtype bf16 --causal --no-window --trials 6 --seed 3"
    )
    assert read_tuned(path).command == expected


@pytest.mark.parametrize(
    ("options", "variants"),
    [
        ([], {"full", "causal", "window", "window_softcap"}),
        (["--causal"], {"causal", "window", "window_softcap"}),
        (["--no-causal"], {"full"}),
        (["--no-window"], {"full", "causal"}),
        (["--no-causal", "--window"], {"full", "window", "window_softcap"}),
    ],
)
def test_which_kernels_are_tuned(options: list[str], variants: set[str], table: Table, tune: Cli, path: Path) -> None:
    table()
    assert tune(*options).code == 0
    entries = read_tuned(path).entries
    assert {entry.spec.variant for entry in entries} == variants
    assert {entry.dtypes for entry in entries} == {("bf16", "fp16")}


def test_both_passes_are_tuned_into_a_file_each(table: Table, cli: Cli, shipped: Path, tmp_path: Path) -> None:
    table()
    small = ("--head-dim", 64, "--dtype", "bf16", "--causal", "--no-window", "--trials", 4, "--jobs", 1)
    done = cli("tune", "--gpu", "h200", *small, "--out", tmp_path)
    assert done.code == 0
    for op, family in (("forward", "tl"), ("backward", "tl_backward")):
        path = tmp_path / "nvidia-h200" / f"{op}.yaml"
        file = read_tuned(path, gpu="nvidia-h200", op=op)
        assert [(entry.spec.variant, entry.config.family) for entry in file.entries] == [("causal", family)]
        assert file.command == "flashgen tune --gpu h200 --head-dim 64 --dtype bf16 --causal --no-window --trials 4"
        assert f"{path}: 1 rules written" in done.out
    again = cli("tune", "--gpu", "h200", "--op", "backward", *small, "--out", tmp_path / "other", "--json").document
    assert again["paths"] == {"backward": str(tmp_path / "other" / "nvidia-h200" / "backward.yaml")}
    assert again["command"].startswith("flashgen tune --gpu h200 --op backward ")


def test_features_take_over_the_rules_that_are_there(table: Table, tune: Cli, path: Path, tmp_path: Path) -> None:
    table()
    held = usual_entries(128, measured=False)
    write_configs(tmp_path / "out", "nvidia-h200", *held)
    done = tune("--causal", "--feature", "dropout+alibi", "--feature", "softcap+sink")
    assert done.code == 0
    found = {entry.spec.variant: entry for entry in read_tuned(path).entries}
    assert set(found) == {
        *(entry.spec.variant for entry in held),
        "causal_alibi_dropout",
        "window_alibi_dropout",
        "window_softcap_sink",
    }
    assert {entry.config for entry in found.values()} == {held[0].config}
    assert "the config of forward-bf16-d128-causal, which was tuned before" in done.err
    assert "--feature alibi+dropout --feature softcap+sink" in read_tuned(path).command


def test_features_are_tuned_beside_plain_kernels_that_are_not_there(table: Table, tune: Cli, path: Path) -> None:
    table()
    assert tune("--dtype", "bf16", "--causal", "--no-window", "--feature", "sink").code == 0
    causal, sink = read_tuned(path).entries
    assert (causal.spec.variant, sink.spec.variant) == ("causal", "causal_sink")
    assert causal.config == sink.config
    assert sink.evidence.candidates == 1


def test_shipped_rules_lend_their_configs(table: Table, tune: Cli, path: Path, shipped: Path) -> None:
    table()
    write_configs(shipped, "nvidia-h200", *usual_entries(128, variants=["causal"], measured=False, BLOCK_N=64))
    assert tune("--causal", "--no-window", "--feature", "sink").code == 0
    (entry,) = read_tuned(path).entries
    assert (entry.spec.variant, entry.config.BLOCK_N, entry.evidence.candidates) == ("causal_sink", 64, 1)


def test_json_is_all_of_stdout(table: Table, tune: Cli, path: Path) -> None:
    table()
    document = tune("--dtype", "bf16", "--causal", "--no-window", "--json").document
    (result,) = document["results"]
    assert (document["gpu"], document["paths"], result["written"]) == ("nvidia-h200", {"forward": str(path)}, True)
    assert result["counts"]["tried"] == 6
    assert [entry["evidence"]["kind"] for entry in result["entries"]] == ["predicted"]
    assert "are predicted" in document["warning"]


def test_rules_of_other_cases_are_kept_and_measured_ones_too(
    table: Table, tune: Cli, path: Path, tmp_path: Path
) -> None:
    table()
    write_configs(tmp_path / "out", "nvidia-h200", *usual_entries(64, 128))
    done = tune("--dtype", "bf16", "--causal", "--no-window")
    assert done.code == 0
    assert "holds a measured rule" in done.err
    assert "nothing was written" in done.out
    assert read_tuned(path).entries == tuple(sorted(usual_entries(64, 128), key=lambda entry: entry.sort_key))


def test_nothing_fits(table: Table, tune: Cli, path: Path) -> None:
    def too_big(candidate: Candidate) -> Resources:
        return Resources(shared_bytes=10**6, registers=128, spill_bytes=0, num_warps=4)

    table(resources=too_big)
    done = tune("--dtype", "bf16")
    assert (done.code, path.exists()) == (4, False)
    assert done.err.count("no config of forward-bf16-d128-causal works") == 1
    assert "smallest need" in done.err
    assert "limit 232448 bytes" in done.err


def test_what_no_family_writes_for_the_gpu(cli: Cli, tmp_path: Path) -> None:
    done = cli("tune", "--gpu", "t4", "--head-dim", 64, "--dtype", "bf16", "--causal", "--no-window", "--out", tmp_path)
    assert done.code == 4
    for op in OPS:
        assert f"{op}-bf16-d64-causal: nothing to try\n" in done.out
        assert f"no family writes {op}-bf16-d64-causal for nvidia-t4" in done.err


def test_some_specs_without_a_rule(table: Table, tune: Cli, path: Path) -> None:
    def causal_only(candidate: Candidate) -> Resources | Rejected:
        fits = plain_resources(candidate)
        return fits if candidate.spec.causal else Resources(shared_bytes=10**6, registers=1, spill_bytes=0, num_warps=4)

    table(resources=causal_only)
    done = tune("--dtype", "bf16", "--no-window")
    assert done.code == 4
    assert [entry.spec.variant for entry in read_tuned(path).entries] == ["causal"]
    assert "no config of forward-bf16-d128-full" in done.err


def test_ctrl_c_keeps_what_was_found(table: Table, tune: Cli, path: Path) -> None:
    def interrupted_at_causal(candidate: Candidate) -> Any:
        if candidate.spec.causal:
            raise KeyboardInterrupt
        return plain_proof(candidate)

    table(proof=interrupted_at_causal)
    done = tune("--dtype", "bf16")
    assert done.code == 130
    assert [entry.spec.variant for entry in read_tuned(path).entries] == ["full"]
    assert "interrupted: the rules found until then are kept" in done.out
    assert "works on" not in done.err
    assert f"{path}: 1 rules written" in done.out


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--gpu", "h20"], 2, ["no GPU is known as 'h20'", "closest: h200"]),
        (["--head-dim", "0"], 2, ["0 is not in the range"]),
        (["--head-dim", "300"], 2, ["300 is not in the range"]),
        (["--dtype", "fp4"], 2, ["fp4", "bf16"]),
        (["--op", "sideways"], 2, ["sideways", "backward", "all"]),
        (["--feature", "alibi+rope"], 2, ["--feature", "'rope' is not one of softcap, alibi, bias, sink, dropout"]),
        (["--feature", "softcap+sink", "--no-causal"], 2, ["softcap+sink needs the window kernels too"]),
        (["--trials", "0"], 2, ["0 is not in the range"]),
        (["--timeout", "-1"], 2, ["-1"]),
        (["--storage", "sqlite:///a.db"], 2, ["'database is locked'", "study.journal"]),
        (["--workload", "no-such-file.yaml"], 2, ["no-such-file.yaml"]),
        (["--require-gpu"], 3, ["a GPU is required", "torch is a CPU build", "flashgen doctor"]),
        (["--gpu", "portable", "--trials", "3"], 2, ["--trials", "portable"]),
    ],
)
def test_bad_input(options: list[str], code: int, words: list[str], cli: Cli, tmp_path: Path) -> None:
    given = ["--gpu", "h200", *options] if "--gpu" not in options else options
    done = cli("tune", "--out", tmp_path / "out", *given)
    assert (done.code, done.out) == (code, "")
    for word in words:
        assert word in done.err
    assert not (tmp_path / "out").exists()


def test_an_unwritable_out_is_found_before_the_search(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("tune", "--gpu", "h200", "--out", tmp_path / "file" / "configs")
    assert done.code == 2
    assert f"{tmp_path / 'file'} is not a directory" in done.err


def test_a_malformed_file_in_out_is_found_before_the_search(tune: Cli, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("schema: 1\nschema: 1\n")
    done = tune()
    assert done.code == 2
    assert f"{path}:2: " in done.err


def test_a_workload_that_cannot_be(cli: Cli, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text("workloads:\n  - {batch: 1, heads_q: 7, heads_kv: 2, seqlen_q: 8, seqlen_k: 8}\n")
    done = cli("tune", "--gpu", "h200", "--workload", sizes, "--out", tmp_path)
    assert done.code == 2
    assert f"{sizes}:2: workloads[0]" in done.err
    assert "heads_q 7 is not a multiple of heads_kv 2" in done.err


def test_own_workloads_are_tuned_on(table: Table, tune: Cli, path: Path, tmp_path: Path) -> None:
    table()
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text("workloads:\n  - {batch: 1, heads_q: 8, heads_kv: 2, seqlen_q: 8, seqlen_k: 512}\n")
    assert tune("--dtype", "bf16", "--causal", "--no-window", "--workload", sizes).code == 0
    (entry,) = read_tuned(path).entries
    assert [timing.workload.key for timing in entry.evidence.timings] == ["b1-h8x2-q8-k512"]


@pytest.fixture
def two_lengths(tmp_path: Path) -> Path:
    lines = [f"  - {{batch: 1, heads_q: 8, heads_kv: 8, seqlen_q: {n}, seqlen_k: {n}}}\n" for n in (512, 8192)]
    path = tmp_path / "sizes.yaml"
    path.write_text(f"workloads:\n{''.join(lines)}")
    return path


def test_lengths_with_other_best_configs_get_rules_that_the_emitted_table_tells_apart(
    table: Table, tune: Cli, path: Path, two_lengths: Path
) -> None:
    table(us=lambda c: [20.0, 20.0] if c.config.BLOCK_M == 64 else [40.0, 10.0])
    done = tune("--causal", "--no-window", "--workload", two_lengths)
    short, long = read_tuned(path).entries
    assert f"best for seqlen_k 1..2048: {short.config.key}" in done.out
    assert f"best for seqlen_k 2049..: {long.config.key}" in done.out
    assert f"{path}: 2 rules written" in done.out
    (rules,) = rule_sets([short, long], [Case(dtype="fp16", heads=(128, 128))], ["causal"])
    assert [(row.max_seqlen_k, row.config) for row in rules.rows] == [(2048, short.config), (None, long.config)]
    assert (short.config.BLOCK_M, short.evidence.worst_regret) == (64, 0.0)
    assert short.evidence.model == long.evidence.model == HELD_OUT
    assert str(HELD_OUT) in done.out


def test_one_rule_for_two_lengths_says_what_it_gives_away(
    table: Table, tune: Cli, path: Path, two_lengths: Path
) -> None:
    table(us=lambda c: [20.0, 20.0] if c.config.BLOCK_M == 64 else [40.0, 19.0])
    done = tune("--causal", "--no-window", "--workload", two_lengths)
    (entry,) = read_tuned(path).entries
    assert entry.evidence.worst_regret == pytest.approx(20 / 19 - 1, abs=1e-5)
    assert "up to 5.3% slower than the best of a workload, 2.6% on average" in done.out


def test_a_study_in_a_file_goes_on(table: Table, tune: Cli, tmp_path: Path) -> None:
    table()
    storage = tmp_path / "study.journal"
    tune("--dtype", "bf16", "--causal", "--no-window", "--storage", storage)
    done = tune("--dtype", "bf16", "--causal", "--no-window", "--storage", storage)
    assert "6 trials are reused; --force tries them again" in done.err


@pytest.mark.case("tuner-19")
def test_force_tries_again_what_is_stored(
    table: Table, tune: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    table()
    storage = ("--dtype", "bf16", "--causal", "--no-window", "--storage", tmp_path / "study.journal")
    tune(*storage)
    note_bad("key", Rejected(reason=Reason.CRASHED, detail="gone"))
    stages = table()
    reused = tune(*storage)
    assert "reused" in reused.err
    assert not stages.glanced
    assert known_bad("key") is not None
    forced = tune(*storage, "--force")
    assert "reused" not in forced.err
    assert len(stages.glanced) == 6
    assert known_bad("key") is None


def test_a_terminal_sees_a_bar_that_is_taken_away(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, with the count and the best time; the cursor is visible again after an error too."""

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    files = {"forward": RuleFile(directory=tmp_path, gpu="nvidia-h200", op="forward", command="")}
    config = small_space().configs[0]
    with (
        contextlib.suppress(ZeroDivisionError),
        TuneWatch(files=files, measured=False, warning=None, quiet=True) as watch,
    ):
        watch.started(spec_of(), 100, 90, 6)
        watch.tried(spec_of(), TrialRecord(number=0, config=config, outcome=outcome_of(config)))
        raise ZeroDivisionError
    shown = screen.getvalue()
    assert "forward-bf16-d128-full: 100 enumerated, 90 may fit" in shown
    assert "1/6" in shown
    assert "best" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_only_the_families_that_are_asked_for_are_searched(table: Table, tune: Cli, path: Path) -> None:
    table()
    done = tune("--dtype", "bf16", "--causal", "--no-window", "--family", "tl")
    assert done.code == 0
    found = read_tuned(path, gpu="nvidia-h200", op="forward")
    assert [entry.config.family for entry in found.entries] == ["tl"]
    assert "--family tl" in found.command


def test_families_that_do_not_write_the_pass_are_refused(tune: Cli) -> None:
    done = tune("--family", "tl_backward")
    assert done.code == 2
    assert "none writes forward kernels; next: add one of tl, gluon_sm90" in done.err


def test_of_two_best_rules_it_says_which_is_the_deterministic_one() -> None:
    ordered = usual_entries(64, op="backward")[0]
    unordered = replace(ordered, config=GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2))
    counts = FunnelCounts(enumerated=2, fit=2, tried=2, compiled=2, exact=2, timed=2)
    result = TuneResult(spec=ordered.spec, counts=counts, entries=(unordered, ordered))
    best = [line for line in lines_of(result, measured=True) if line.startswith("  best")]
    assert best == [
        f"  best: {unordered.config.key}",
        f"  best with deterministic=True: {ordered.config.key}",
    ]
    alone = lines_of(replace(result, entries=(ordered,)), measured=True)
    assert f"  best: {ordered.config.key}" in alone
