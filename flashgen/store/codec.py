"""Between a TunedFile and plain mappings: the dataclasses are the schema, so that it is said once.

`decode_*` read the Values of a strict YAML file, `encode_*` give what the file will hold, in the order it will hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from flashgen.config import KernelConfig
from flashgen.families import FAMILIES
from flashgen.outcome import Proof, Resources, Toolchain
from flashgen.resources.fit import HeldOut
from flashgen.spec import FEATURES, OPS, AttentionSpec, Workload
from flashgen.store.entry import SCHEMA, TunedEntry, TunedFile, WorkloadRange, first_clash
from flashgen.store.evidence import Evidence, EvidenceKind, Timing
from flashgen.store.value import Value

T = TypeVar("T")
Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

_SIZES = tuple(f.name for f in fields(Workload))


def decode(value: Value, kind: Any) -> Any:
    """`value` as the annotation `kind` says: a scalar, `X | None`, a Literal, `tuple[X, ...]` or a dataclass."""
    if is_dataclass(kind):
        return decode_record(value, kind)  # type: ignore[arg-type]  # a dataclass, and no instance of one
    if get_origin(kind) is Literal:
        return value.choice(get_args(kind))
    if get_origin(kind) is tuple:
        return tuple(decode(item, get_args(kind)[0]) for item in value.items())
    return value.scalar(*(get_args(kind) or (kind,)))


def decode_record(value: Value, cls: type[T], *, optional: Sequence[str] = (), **given: object) -> T:
    """The dataclass `cls` from a mapping of its fields, less those that are `given`; `optional` ones may be missing."""
    hints = get_type_hints(cls)
    required = [name for name in hints if name not in given and name not in optional]
    members = value.members(required, optional)
    return value.build(cls, **given, **{name: decode(member, hints[name]) for name, member in members.items()})


def decode_config(value: Value) -> KernelConfig:
    """The config of the family that the mapping names. A knob that has a default in the family may be left out."""
    name = value.members(["family"], optional=list(value.data) if isinstance(value.data, dict) else [])["family"]
    family = FAMILIES[str(name.choice(tuple(FAMILIES)))]
    hints = get_type_hints(family.config_type)
    knobs = [f for f in fields(family.config_type) if f.name != "family"]
    members = value.members(
        ["family", *(f.name for f in knobs if f.default is MISSING)],
        [f.name for f in knobs if f.default is not MISSING],
    )
    held = {knob: decode(member, hints[knob]) for knob, member in members.items() if knob != "family"}
    return value.build(family.config, knobs=held)


def decode_timing(value: Value, kind: EvidenceKind) -> Timing:
    names = [*_SIZES, *_timing_names(kind)]
    hints = get_type_hints(Workload) | get_type_hints(Timing) | {"us": float}
    held = {name: decode(member, hints[name]) for name, member in value.members(names).items()}
    workload = value.build(Workload, **{name: held.pop(name) for name in _SIZES})
    if kind == "predicted":
        us = held.pop("us")
        held |= {"median_us": us, "low_us": us, "high_us": us, "samples": 0}
    return value.build(Timing, workload=workload, **held)


def _timing_names(kind: EvidenceKind) -> tuple[str, ...]:
    return ("median_us", "low_us", "high_us", "samples", "tflops") if kind == "measured" else ("us", "bound", "tflops")


def decode_entry(value: Value, op: str) -> TunedEntry:
    parts = ("spec", "dtypes", "workloads", "config", "evidence", "timings", "resources", "proof", "toolchain")
    members = value.members(parts, ["model"])
    evidence = members["evidence"]
    kind = decode(evidence.members(["kind"], [f.name for f in fields(Evidence)])["kind"], EvidenceKind)
    timings = tuple(decode_timing(item, kind) for item in members["timings"].items())
    model = decode_record(members["model"], HeldOut) if "model" in members else None
    return value.build(
        TunedEntry,
        spec=decode_record(members["spec"], AttentionSpec, optional=FEATURES, op=op),
        dtypes=decode(members["dtypes"], tuple[str, ...]),
        workloads=decode_record(members["workloads"], WorkloadRange),
        config=decode_config(members["config"]),
        evidence=decode_record(evidence, Evidence, timings=timings, model=model),
        resources=decode_record(members["resources"], Resources),
        proof=decode_record(members["proof"], Proof),
        toolchain=decode_record(members["toolchain"], Toolchain),
    )


def decode_file(value: Value) -> TunedFile:
    """The TunedFile that a parsed YAML file says.

    Raises:
        TunedConfigError: with file, line and key, whatever is missing, unknown, of another type or impossible.
    """
    names = [f.name for f in fields(TunedFile)]
    if isinstance(value.data, dict) and "schema" in value.data:  # first: another schema may have other keys
        value.data["schema"].choice((SCHEMA,))
    members = value.members(names)
    op = members["op"].choice(OPS)
    entries: list[TunedEntry] = []
    for item in members["entries"].items():
        entries.append(decode_entry(item, str(op)))
        if clash := first_clash(entries):
            item.fail(f"found a second rule for one case: {clash[1].label}, beside {clash[0].label}")
    head = {name: decode(members[name], hint) for name, hint in (("schema", int), ("gpu", str), ("command", str))}
    return value.build(TunedFile, op=op, entries=tuple(entries), **head)


def encode_record(record: object, *, without: Sequence[str] = ()) -> dict[str, Plain]:
    """The fields of a dataclass in their order; numbers as the annotations say, so that equal records become equal."""
    hints = get_type_hints(type(record))
    return {name: _encode(getattr(record, name), hint) for name, hint in hints.items() if name not in without}


def _encode(value: Any, kind: Any) -> Plain:
    if isinstance(value, tuple):
        return [_encode(item, get_args(kind)[0]) for item in value]
    if kind in (int, float):
        number: Plain = kind(value)
        return number
    plain: Plain = value
    return plain


def encode_spec(spec: AttentionSpec) -> dict[str, Plain]:
    """All that the file does not say already; of the features those that the kernel has."""
    absent = [name for name in FEATURES if name not in spec.features]
    return encode_record(spec, without=["op", *absent])


def encode_timing(timing: Timing) -> dict[str, Plain]:
    figures = encode_record(timing, without=["workload"])
    figures["us"] = figures["median_us"]
    names = _timing_names("predicted" if timing.is_predicted else "measured")
    return encode_record(timing.workload) | {name: figures[name] for name in names}


def encode_entry(entry: TunedEntry) -> dict[str, Plain]:
    evidence, model = entry.evidence, entry.evidence.model
    return {
        "spec": encode_spec(entry.spec),
        "dtypes": list(entry.dtypes),
        "workloads": encode_record(entry.workloads),
        "config": {"family": entry.config.family, **entry.config.knobs()},
        "evidence": encode_record(evidence, without=["timings", "model"]),
        **({} if model is None else {"model": encode_record(model)}),
        "timings": [encode_timing(timing) for timing in evidence.timings],
        "resources": encode_record(entry.resources),
        "proof": encode_record(entry.proof),
        "toolchain": encode_record(entry.toolchain),
    }


def encode_file(file: TunedFile) -> dict[str, Plain]:
    head = encode_record(file, without=["entries"])
    return head | {"entries": [encode_entry(entry) for entry in file.entries]}
