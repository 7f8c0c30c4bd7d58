"""What the header of an emitted module says about it: facts that its rules hold, wrapped to the line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap

from flashgen.codegen.device_names import device_name
from flashgen.codegen.rules import Case
from flashgen.hardware.known import KNOWN
from flashgen.spec import DTYPES, OPS, Op
from flashgen.store.entry import TunedEntry

_WIDTH = 118
_INDENT = 15
_OUTPUTS: dict[Op, str] = {"forward": "forward (out, lse)", "backward": "backward (dq, dk, dv)"}
_MASKS = {"full": "no mask", "causal": "causal (bottom-right)", "window": "sliding window"}


def facts_of(
    gpus: Mapping[str, Sequence[TunedEntry]],
    portable: Sequence[TunedEntry],
    cases: Iterable[Case],
    variants: Sequence[str],
) -> tuple[str, ...]:
    """The lines, for the rules of each GPU (by slug) and the portable ones that the module holds."""
    return (
        *_fact("Computes", _computed(list(_by_op(portable)), sorted(cases), variants), _in_fp8(gpus)),
        *_fact("Tuned for", *(_tuned(slug, entries) for slug, entries in gpus.items()), _fallback(gpus)),
        *_fact(
            "Proved",
            *(
                _proved(f"{slug} {op}", of_op)
                for slug, entries in (*gpus.items(), ("portable", portable))
                for op, of_op in _by_op(entries).items()
            ),
        ),
        *_fact("Compiled with", _compiled([entry for entries in (*gpus.values(), portable) for entry in entries])),
    )


def gpu_comment(slug: str, entries: Sequence[TunedEntry]) -> str:
    """What stands above the GPU's table."""
    return f"For {_described(slug)}: {_evidence(entries)}."


def _fact(label: str, *texts: str) -> list[str]:
    """The texts beside their label, each from a line of its own."""
    lines = [line for text in texts if text for line in wrap(text, _WIDTH - _INDENT, break_long_words=False)]
    return [f"{label if i == 0 else '':<{_INDENT}}{line}" for i, line in enumerate(lines)]


def _computed(ops: Sequence[Op], cases: Sequence[Case], variants: Sequence[str]) -> str:
    dtypes = [dtype for dtype in DTYPES if any(case.dtype == dtype for case in cases)]
    heads = sorted({case.heads for case in cases})
    dims = ", ".join(str(qk) if qk == v else f"{qk} (v: {v})" for qk, v in heads)
    masks = ", ".join(text for variant, text in _MASKS.items() if variant in variants)
    sets = dict.fromkeys(variant.partition("_")[2] for variant in variants if "_" in variant)
    features = "".join(f"; {features.replace('_', ' with ')}" for features in sets)
    what = " and ".join(_OUTPUTS[op] for op in ops)
    return f"attention {what}, in {', '.join(dtypes)}; head_dim {dims}; {masks}{features}; MHA, GQA and MQA"


def _in_fp8(gpus: Mapping[str, Sequence[TunedEntry]]) -> str:
    """Of fp8 a module holds what the GPUs' rules do, and nothing else."""
    held = {entry.spec.mask for entries in gpus.values() for entry in entries if entry.spec.is_fp8}
    masks = ", ".join(text for variant, text in _MASKS.items() if variant in held)
    return f"of these in fp8: forward; {masks}" if held else ""


def _tuned(slug: str, entries: Sequence[TunedEntry]) -> str:
    counts = " and ".join(f"{len(of_op)} {op}" for op, of_op in _by_op(entries).items())
    return f"{_described(slug)}: {counts} rule{'' if len(entries) == 1 else 's'}, {_evidence(entries)}"


def _described(slug: str) -> str:
    return f"{device_name(slug)} ({slug}, {KNOWN[slug].arch})" if slug in KNOWN else slug


def _fallback(gpus: Mapping[str, Sequence[TunedEntry]]) -> str:
    return "any other GPU runs the portable rules" if gpus else "no GPU in particular: rules that fit any"


def _evidence(entries: Sequence[TunedEntry]) -> str:
    """`measured`, `predicted`, or how many are which."""
    measured = sum(entry.evidence.kind == "measured" for entry in entries)
    if 0 < measured < len(entries):
        return f"{measured} measured, {len(entries) - measured} predicted"
    return "measured" if measured else "predicted by a cost model, not measured"


def _proved(whose: str, entries: Sequence[TunedEntry]) -> str:
    """Over all proofs of the entries: how many probes each ran, the worst ratio, and where."""
    proofs = [entry.proof for entry in entries]
    suites = ", ".join(sorted({f"{proof.suite} ({proof.suite_hash})" for proof in proofs}))
    places = " and ".join(sorted({_place(proof.where, proof.dtypes) for proof in proofs}))
    fewest, most = (pick(proof.probes for proof in proofs) for pick in (min, max))
    probes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    worst = max(proof.worst_ratio for proof in proofs)
    return f"{whose}: {probes} probes a rule of suite {suites}, worst error {worst:.2f} of the allowed, {places}"


def _place(where: str, dtypes: Sequence[str]) -> str:
    return f"{', '.join(dtypes)} {'on the GPU' if where == 'gpu' else 'in the interpreter'}"


def _compiled(entries: Sequence[TunedEntry]) -> str:
    versions = sorted({(entry.toolchain.triton, entry.toolchain.torch) for entry in entries})
    return "; ".join(f"triton {triton}, torch {torch}" for triton, torch in versions)


def _by_op(entries: Sequence[TunedEntry]) -> dict[Op, list[TunedEntry]]:
    """The entries of each op that has some."""
    return {op: found for op in OPS if (found := [entry for entry in entries if entry.spec.op == op])}
