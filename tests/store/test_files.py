"""What is written reads back equal, with the same bytes each time; what is spoilt is refused where it is spoilt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashgen.errors import OutputError, TunedConfigError
from flashgen.families import serving
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Proof, Resources, Toolchain
from flashgen.resources.fit import HELD_OUT, HeldOut
from flashgen.spec import DTYPES, FEATURES, OPS, AttentionSpec, Op, Workload
from flashgen.store.codec import decode_file, encode_file
from flashgen.store.entry import TunedEntry, TunedFile, WorkloadRange
from flashgen.store.evidence import Evidence, Timing
from flashgen.store.files import read_tuned, tuned_path, write_tuned
from flashgen.store.strict_yaml import parse
from flashgen.store.yaml_text import render

ROOT = Path(__file__).parents[2]
TARGET = GpuTarget(
    slug="nvidia-h200",
    arch="sm_90",
    sm_count=132,
    smem_per_block=232448,
    smem_per_sm=233472,
    registers_per_sm=65536,
    l2_bytes=50 << 20,
    hbm_bytes_per_s=4.8e12,
    bf16_flops=989e12,
    clock_hz=1.98e9,
)

TRICKY = [
    "1E6",
    "25921e05",
    "on",
    "3.10",
    "",
    "null",
    "~",
    "012",
    "1:30",
    "true",
    "0x1f",
    "2026-01-02",
    "<<",
    "=",
    "- a",
]
TRICKY += [
    "# x",
    "a: b",
    "{a}",
    "[a]",
    "*x",
    "&x",
    "!x",
    "%x",
    "@x",
    "'",
    '"',
    "\\",
    "a\tb",
    "\u2028",
    "\x00",
    "é",
    "\ud800",
]
texts = st.sampled_from(TRICKY) | st.text(max_size=20)
counts = st.integers(0, 1 << 40)
times = st.floats(1e-9, 1e15)
ratios = st.floats(0, 1)


@st.composite
def specs(draw: st.DrawFn, op: Op) -> AttentionSpec:
    mask: dict[str, Any] = draw(st.sampled_from([{}, {"causal": True}, {"window": True}]))
    dims = st.integers(1, 256)
    return AttentionSpec(
        op=op,
        dtype=draw(st.sampled_from(DTYPES)),
        head_dim=draw(dims),
        head_dim_v=draw(dims),
        **mask,
        **{feature: draw(st.booleans()) for feature in FEATURES},
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    heads, group, size = draw(st.integers(1, 64)), draw(st.integers(1, 8)), st.integers(1, 1 << 31)
    return Workload(batch=draw(size), heads_q=heads * group, heads_kv=heads, seqlen_q=draw(size), seqlen_k=draw(size))


@st.composite
def timings(draw: st.DrawFn, kind: str) -> Timing:
    low, median, high = sorted(draw(st.tuples(times, times, times)))
    if kind == "predicted":
        low = high = median
    return Timing(
        workload=draw(workloads()),
        median_us=median,
        low_us=low,
        high_us=high,
        samples=draw(st.integers(1, 10**6)) if kind == "measured" else 0,
        tflops=draw(times),
        bound=draw(texts.filter(bool)) if kind == "predicted" else "",
    )


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    kind: Literal["measured", "predicted"] = draw(st.sampled_from(["measured", "predicted"]))
    held = draw(st.lists(timings(kind), min_size=1, max_size=3, unique_by=lambda timing: timing.workload))
    mean, worst = sorted(draw(st.tuples(ratios, ratios)))
    ties = draw(counts)
    return Evidence(
        kind=kind,
        timings=tuple(held),
        ties=ties,
        candidates=ties + 1,
        worst_regret=worst,
        mean_regret=mean,
        model=draw(st.none() | checks()) if kind == "predicted" else None,
    )


@st.composite
def checks(draw: st.DrawFn) -> HeldOut:
    top5, first = sorted(draw(st.tuples(ratios, ratios)))
    return HeldOut(
        gpu=draw(texts),
        op=draw(st.sampled_from(OPS)),
        specs=draw(st.integers(1, 100)),
        rank_correlation=draw(st.floats(-1, 1)),
        first_regret=first,
        top5_regret=top5,
        error=draw(ratios),
    )


@st.composite
def entries(draw: st.DrawFn, op: Op) -> TunedEntry:
    spec = draw(specs(op))
    low = draw(st.integers(1, 1 << 31))
    shared = spec.dtype in ("bf16", "fp16") and draw(st.booleans())
    return TunedEntry(
        spec=spec,
        dtypes=("fp16", "bf16") if shared else (spec.dtype,),
        workloads=WorkloadRange(seqlen_k_min=low, seqlen_k_max=draw(st.none() | st.integers(low, 1 << 32))),
        config=draw(st.sampled_from(CONFIGS[op])),
        evidence=draw(evidences()),
        resources=Resources(
            shared_bytes=draw(counts), registers=draw(counts), spill_bytes=draw(counts), num_warps=draw(counts)
        ),
        proof=Proof(
            suite=draw(texts),
            suite_hash=draw(texts),
            where=draw(st.sampled_from(["gpu", "interpreter"])),
            dtypes=(spec.dtype, *draw(st.lists(texts, max_size=2))),
            probes=draw(counts),
            worst_ratio=draw(ratios),
            worst_probe=draw(texts),
            seed=draw(st.integers(0, 1 << 128)),
            repeats=draw(counts),
        ),
        toolchain=Toolchain(flashgen=draw(texts), triton=draw(texts), torch=draw(texts), kernels=draw(texts)),
    )


CONFIGS = {
    op: [
        config
        for family in serving(op).values()
        for config in list(
            family.space(AttentionSpec(op=op, dtype="bf16", head_dim=64, head_dim_v=64, causal=True), TARGET)
        )[::37]
    ]
    for op in OPS
}


@st.composite
def files(draw: st.DrawFn) -> TunedFile:
    op = draw(st.sampled_from(OPS))
    return TunedFile(
        gpu=draw(st.sampled_from(["nvidia-h200", "on", "1e6", "no", "012"])),
        op=op,
        command=draw(texts),
        entries=tuple(draw(st.lists(entries(op), max_size=3, unique_by=lambda entry: entry.spec))),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(files())
def test_round_trip_is_identity(file: TunedFile) -> None:
    text = render(file)
    again = decode_file(parse(text, "f.yaml"))
    assert again == file
    assert render(again) == text
    # Any other YAML library reads the same values: no string that only our loader knows for one.
    assert yaml.safe_load(text) == encode_file(file)


@pytest.mark.parametrize("text", TRICKY)
def test_strings_that_look_like_something_else_stay_strings(
    tmp_path: Path, make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile], text: str
) -> None:
    entry = make_entry()
    tools = replace(entry.toolchain, triton=text, kernels=text)
    file = make_file(replace(entry, toolchain=tools), command=text)
    path = tmp_path / "forward.yaml"
    write_tuned(path, file)
    assert read_tuned(path).entries[0].toolchain.triton == text
    assert read_tuned(path) == file


def test_numbers_are_written_alike_whatever_type_they_came_as(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    entry = make_entry()
    whole = replace(entry.evidence.timings[0], median_us=123, low_us=123, high_us=123)
    point = replace(entry.evidence.timings[0], median_us=123.0, low_us=123.0, high_us=123.0)
    texts = [render(make_file(replace(entry, evidence=replace(entry.evidence, timings=(t,))))) for t in (whole, point)]
    assert texts[0] == texts[1]


def test_a_rule_is_a_compact_block(tuned_text: str) -> None:
    lines = tuned_text.splitlines()
    assert lines[0].startswith("# ")
    assert 'command: "flashgen tune --gpu nvidia-h200"' in lines
    assert "  - spec: {dtype: bf16, head_dim: 128, head_dim_v: 128, causal: true, window: false}" in lines
    assert any(line.startswith("    config: {family: tl, BLOCK_M: 128, BLOCK_N: 64, num_warps: 8,") for line in lines)
    assert '    toolchain: {flashgen: "0.1.0", triton: "3.10", torch: "2.13.0+cu130", kernels: "1E6"}' in lines
    assert len(lines) <= 17
    assert tuned_text.isascii()


def test_a_predicted_rule_says_how_the_cost_model_was_checked_and_one_of_an_older_file_need_not(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    plain = make_file(make_entry(kind="predicted"))
    entry = replace(plain.entries[0], evidence=replace(plain.entries[0].evidence, model=HELD_OUT))
    added = set(render(make_file(entry)).splitlines()) - set(render(plain).splitlines())
    (line,) = added
    assert line.startswith("    model: {gpu: nvidia-h200, op: forward, specs: 6, rank_correlation: ")
    assert decode_file(parse(render(make_file(entry)), "f.yaml")) == make_file(entry)
    assert decode_file(parse(render(plain), "f.yaml")).entries[0].evidence.model is None


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/store'); import conftest as c\n"
        "from flashgen.store.yaml_text import render\n"
        "rules = [c.build_entry(head_dim=d, dtype=t) for d in (256, 64) for t in ('fp32', 'bf16')]\n"
        "print(render(c.build_file(*rules)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b"- spec:") == 4


SPOILT = [
    # what is replaced, by what, the line and key path that the error names, part of the message
    ("schema: 1", "schema: 2", 2, "schema", "found number 2; allowed: 1"),
    ("schema: 1", "schema: true", 2, "schema", "found true; allowed: 1"),
    ("schema: 1", "schema: 1.0", 2, "schema", "found number 1.0; allowed: 1"),
    ("gpu: nvidia-h200", "gpu: ../h200", 2, "top level", "gpu '../h200' is not a slug"),
    ("gpu: nvidia-h200", "gpu: 012", 3, "gpu", "found 012; a number has no leading zero"),
    ("gpu: nvidia-h200\n", "", 2, "gpu", "found nothing; the key is required"),
    ("op: forward", "op: sideways", 4, "op", "found text 'sideways'; allowed: forward"),
    ("op: forward", "op: forward\nop: forward", 5, "op", "found a second time, first on line 4"),
    ("entries:", "entrys:", 6, "entrys", "found an unknown key (did you mean entries?); allowed: schema, gpu"),
    ("head_dim: 128", "head_dim: [64, 128]", 7, "entries[0].spec.head_dim", "found a list; allowed: an integer"),
    ("head_dim: 128", 'head_dim: "64, 128"', 7, "entries[0].spec.head_dim", "text '64, 128'; allowed: an integer"),
    ("head_dim: 128", "head_dim: 64, 128", 7, "entries[0].spec.128", "found 128 for a key; allowed: a name"),
    ("head_dim: 128", "head_dim: 3.10", 7, "entries[0].spec.head_dim", "found number 3.10; allowed: an integer"),
    ("head_dim: 128", "head_dim: true", 7, "entries[0].spec.head_dim", "found true; allowed: an integer"),
    ("head_dim: 128", "head_dim: 300", 7, "entries[0].spec", "head_dim 300 is not an integer from 1 to 256"),
    ("head_dim: 128, ", "", 7, "entries[0].spec.head_dim", "found nothing; the key is required"),
    ("causal: true", "causal: on", 7, "entries[0].spec.causal", "found on; only true and false"),
    ("causal: true", "causal: 'true'", 7, "entries[0].spec.causal", "found text 'true'; allowed: true or false"),
    ("causal: true", "causal: 1", 7, "entries[0].spec.causal", "found number 1; allowed: true or false"),
    ("window: false", "on: false", 7, "entries[0].spec.on", "found on for a key"),
    ("window: false", "window: true", 7, "entries[0].spec", "causal and window are one mask"),
    ("dtype: bf16", "dtype: fp4", 7, "entries[0].spec.dtype", "text 'fp4'; allowed: fp16, bf16, fp32, fp8"),
    ("dtypes: [bf16, fp16]", "dtypes: bf16", 8, "entries[0].dtypes", "found text 'bf16'; allowed: a list"),
    ("dtypes: [bf16, fp16]", "dtypes: [bf16, 16]", 8, "entries[0].dtypes[1]", "found number 16; allowed: text"),
    ("dtypes: [bf16, fp16]", "dtypes: [fp16]", 7, "entries[0]", "a rule timed in bf16 serves bf16"),
    ("seqlen_k_max: null", "seqlen_k_max: None", 9, "entries[0].workloads.seqlen_k_max", "found None; write null"),
    ("seqlen_k_max: null", "seqlen_k_max: x", 9, "entries[0].workloads.seqlen_k_max", "allowed: an integer or null"),
    ("seqlen_k_max: null", "seqlen_k_max: 0", 9, "entries[0].workloads", "seqlen_k from 1 to 0 is no range"),
    ("family: tl", "family: cute", 10, "entries[0].config.family", "found text 'cute'; allowed: tl"),
    ("family: tl, ", "", 10, "entries[0].config.family", "found nothing; the key is required"),
    ("BLOCK_M: 128", "BLOCK_M: 012", 10, "entries[0].config.BLOCK_M", "found 012; a number has no leading zero"),
    ("BLOCK_M: 128", "BLOCK_M: 1:30", 10, "entries[0].config.BLOCK_M", "found 1:30; YAML 1.1 reads base 60"),
    ("BLOCK_M: 128", "BLOCK_M: null", 10, "entries[0].config.BLOCK_M", "found null; allowed: an integer"),
    ("BLOCK_M: 128", "BLOCK_M: 100", 10, "entries[0].config", "BLOCK_M 100 is not one of"),
    ("BLOCK_M: 128", "BLOCK_MM: 128", 10, "entries[0].config.BLOCK_MM", "unknown key (did you mean BLOCK_M?)"),
    ("BLOCK_M: 128, ", "", 10, "entries[0].config.BLOCK_M", "found nothing; the key is required"),
    ("kind: measured", "kind: guessed", 11, "entries[0].evidence.kind", "allowed: measured, predicted"),
    ("kind: measured, ", "", 11, "entries[0].evidence.kind", "found nothing; the key is required"),
    ("ties: 2", "ties: 240", 11, "entries[0].evidence", "ties 240 is not from 0 to the 240 candidates"),
    ("worst_regret: 0.013", "worst_regret: .nan", 11, "entries[0].evidence.worst_regret", "found .nan; numbers are"),
    ("kind: measured", "kind: predicted", 13, "entries[0].timings[0].median_us", "unknown key"),
    ("median_us: 123.46", "median_us: .inf", 13, "entries[0].timings[0].median_us", "numbers are finite"),
    ("median_us: 123.46", "median_us: 999", 13, "entries[0].timings[0]", "median_us 999.0 is outside 122.5 to 125.0"),
    ("heads_q: 32", "heads_q: 33", 13, "entries[0].timings[0]", "heads_q 33 is not a multiple of heads_kv 8"),
    ("shared_bytes: 163840", "shared_bytes: 160KB", 14, "entries[0].resources.shared_bytes", "text '160KB'"),
    ("worst_ratio: 0.61", "worst_ratio: 1.61", 7, "entries[0]", "proof.worst_ratio 1.61 is above 1"),
    (
        'suite_hash: "25921e05"',
        "suite_hash: 25921e05",
        15,
        "entries[0].proof.suite_hash",
        "number 25921e05; allowed: text",
    ),
    ('triton: "3.10"', "triton: 3.10", 16, "entries[0].toolchain.triton", "found number 3.10; allowed: text"),
    ('triton: "3.10"', "triton: !!str 3.10", 16, "entries[0].toolchain.triton", "found the tag !!str"),
    ('triton: "3.10"', "triton: &v x", 16, "entries[0].toolchain.triton", "found the anchor &v"),
]


@pytest.mark.parametrize(("good", "bad", "line", "keys", "message"), SPOILT)
def test_a_spoilt_file_is_refused_where_it_is_spoilt(
    tmp_path: Path, tuned_text: str, good: str, bad: str, line: int, keys: str, message: str
) -> None:
    assert good in tuned_text
    path = tmp_path / "forward.yaml"
    path.write_text(tuned_text.replace(good, bad, 1))
    with pytest.raises(TunedConfigError) as caught:
        read_tuned(path)
    assert str(caught.value).startswith(f"{path}:{line}: {keys}: ")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_number_with_an_exponent_is_a_number(tuned_text: str) -> None:
    text = tuned_text.replace("mean_regret: 0.004", "mean_regret: 1e-3")
    assert decode_file(parse(text, "f.yaml")).entries[0].evidence.mean_regret == 0.001


def test_a_second_rule_for_one_case_is_refused_at_its_line(tuned_text: str) -> None:
    rule = tuned_text[tuned_text.index("  - spec") :]
    with pytest.raises(
        TunedConfigError, match=r"^f\.yaml:17: entries\[1\]: found a second rule for one case: forward-bf16"
    ):
        decode_file(parse(tuned_text + rule, "f.yaml"))


def test_a_truncated_file_is_an_error_or_a_file_of_fewer_rules(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    file = make_file(make_entry(), make_entry(head_dim=64))
    text = render(file)
    readable, errors = [], []
    for end in range(0, len(text) - 1, 7):
        try:
            readable.append(decode_file(parse(text[:end], "f.yaml")))
        except TunedConfigError as error:
            errors.append(str(error))
    assert all(error.startswith("f.yaml:") for error in errors)
    assert {part.entries for part in readable} <= {file.entries[:1], file.entries}


def test_a_knob_with_a_default_may_be_left_out(tuned_text: str) -> None:
    entry = decode_file(parse(tuned_text.replace(", maxnreg: null", ""), "f.yaml")).entries[0]
    assert entry.config.knobs()["maxnreg"] is None


def test_features_that_a_rule_lacks_are_left_out_and_may_be_there(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile], tuned_text: str
) -> None:
    text = render(make_file(make_entry(alibi=True, dropout=True)))
    assert "head_dim_v: 128, causal: true, window: false, alibi: true, dropout: true}" in text
    named = tuned_text.replace("window: false}", "window: false, softcap: false, sink: false}")
    assert named != tuned_text
    assert decode_file(parse(named, "f.yaml")) == decode_file(parse(tuned_text, "f.yaml"))


def test_a_backward_rule_is_a_rule_of_its_own_file(
    tmp_path: Path, make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    path = tmp_path / "backward.yaml"
    file = make_file(make_entry(op="backward"), op="backward")
    write_tuned(path, file)
    assert read_tuned(path, op="backward") == file
    assert "family: tl_backward, BLOCK_M: 128, BLOCK_N: 64" in path.read_text()
    with pytest.raises(TunedConfigError, match="a rule of op 'backward' in a file of op 'forward'"):
        make_file(make_entry(op="backward"))


def test_a_config_of_the_other_op_is_refused_where_it_stands(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    text = render(make_file(make_entry(op="backward"), op="backward")).replace("op: backward", "op: forward")
    with pytest.raises(TunedConfigError, match=r"^f\.yaml:7: entries\[0\]: family tl_backward writes op backward"):
        decode_file(parse(text, "f.yaml"))


def test_a_file_for_another_gpu_or_op_is_refused(tmp_path: Path, tuned_text: str) -> None:
    path = tmp_path / "forward.yaml"
    path.write_text(tuned_text)
    assert read_tuned(path, gpu="nvidia-h200", op="forward").gpu == "nvidia-h200"
    with pytest.raises(TunedConfigError, match=rf"^{path}:3: gpu: found nvidia-h200; this place is for nvidia-h100$"):
        read_tuned(path, gpu="nvidia-h100")
    with pytest.raises(TunedConfigError, match=rf"^{path}:4: op: found forward; this place is for decode$"):
        read_tuned(path, op="decode")


def test_tuned_path_stays_below_its_directory() -> None:
    assert tuned_path(Path("configs"), "nvidia-h200", "forward") == Path("configs/nvidia-h200/forward.yaml")
    for slug, op in [("../x", "forward"), ("a/b", "forward"), ("", "forward"), ("nvidia-h200", "../forward")]:
        with pytest.raises(TunedConfigError):
            tuned_path(Path("configs"), slug, op)


def test_what_would_not_read_back_is_not_written(
    tmp_path: Path, make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    path = tmp_path / "forward.yaml"
    write_tuned(path, make_file())
    before = path.read_bytes()
    entry = make_entry()
    wrong: list[Any] = [12.5, "168"]
    for registers in wrong:
        broken = replace(entry, resources=replace(entry.resources, registers=registers))
        with pytest.raises(OutputError, match=r"forward\.yaml: not written, as it would read back as something else"):
            write_tuned(path, make_file(broken))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
