"""A kernel config as users give it: `BLOCK_M=128,BLOCK_N=64,num_warps=8,num_stages=2`, a YAML file, or nothing."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

import click

from flashgen.config import KernelConfig
from flashgen.errors import TunedConfigError
from flashgen.families import FAMILIES, serving
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec, Dtype, Op, Workload
from flashgen.store.codec import decode_config, decode_file
from flashgen.store.entry import TunedFile
from flashgen.store.files import read_tuned, tuned_path
from flashgen.store.lookup import find_entry
from flashgen.store.strict_yaml import load

_SPEC_KEY = re.compile(r"(?P<op>\w+)-(?P<dtype>\w+)-d(?P<head_dim>\d+)(?:v(?P<head_dim_v>\d+))?-(?P<variant>[a-z-]+)")
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


def parse_spec(key: str) -> AttentionSpec:
    """The spec of a key such as `forward-bf16-d128-causal`: what AttentionSpec.key gives.

    Raises:
        BadParameter: a text that is no such key.
        SpecError: a part of it that is not one of those allowed.
    """
    found = _SPEC_KEY.fullmatch(key)
    if found is None:
        raise click.BadParameter(
            f"{key!r} is no OP-DTYPE-dN-MASK[-FEATURE...] such as forward-bf16-d128-causal or "
            "backward-fp16-d192v128-window-softcap",
            param_hint="--spec",
        )
    head_dim = int(found["head_dim"])
    return AttentionSpec.of_variant(
        found["variant"].replace("-", "_"),
        dtype=cast(Dtype, found["dtype"]),
        head_dim=head_dim,
        head_dim_v=int(found["head_dim_v"] or head_dim),
        op=cast(Op, found["op"]),
    )


def parse_config(text: str, op: Op = "forward") -> KernelConfig:
    """The config of a key such as `tl:BLOCK_M=128,BLOCK_N=64,num_warps=8,num_stages=3,tma=1`; without a family's name,
    of the first one that writes `op`.

    Raises:
        BadParameter: a part that is no KNOB=VALUE, or a value of another type than the knob's.
        SpecError: a knob that is unknown, missing or out of its range.
    """
    named, _, knobs = text.rpartition(":")
    name = named or next(iter(serving(op)))
    if name not in FAMILIES:
        raise click.BadParameter(f"family {name!r} is not one of {', '.join(FAMILIES)}", param_hint="--config")
    family = FAMILIES[name]
    hints = get_type_hints(family.config_type)
    held: dict[str, Any] = {}
    for part in filter(None, knobs.split(",")):
        knob, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            raise click.BadParameter(
                f"{part!r} is no KNOB=VALUE, and no file of that name exists", param_hint="--config"
            )
        held[knob] = _value(knob, value, hints.get(knob, int))
    needed = [f.name for f in fields(family.config_type) if f.default is MISSING]
    if missing := [knob for knob in needed if knob not in held]:
        raise click.BadParameter(f"{text!r} lacks {', '.join(missing)}", param_hint="--config")
    return family.config(held)


def _value(knob: str, text: str, hint: Any) -> int | bool | None:
    if hint is bool and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if NoneType in get_args(hint) and text.lower() in ("null", "none"):
        return None
    if hint is not bool and text.isdecimal():
        return int(text)
    raise click.BadParameter(f"{knob}={text} is not {'0 or 1' if hint is bool else 'a number'}", param_hint="--config")


def config_for(
    text: str | None, spec: AttentionSpec, target: GpuTarget, workload: Workload, configs: Path
) -> KernelConfig:
    """The config that `text` gives; without one the tuned rule of `configs`, else the families' own best guess.

    A file is one config (`family:` and its knobs) or a file of rules, whose rule for `spec` is taken.

    Raises:
        BadParameter: a text that is no config, or a config whose family writes another op.
        TunedConfigError: a file that is malformed, or has no rule for `spec`.
    """
    if text is None:
        path = tuned_path(configs, target.slug, spec.op)
        entry = find_entry(read_tuned(path), spec, workload) if path.exists() else None
        families = serving(spec.op).values()
        able = (family for family in families if family.unsupported(spec, target) is None)
        return entry.config if entry is not None else next(able, next(iter(families))).likely_good(spec, target)[0]
    config = _given(text, spec, workload)
    if (writes := FAMILIES[config.family].op) != spec.op:
        raise click.BadParameter(
            f"{config.key} is a config of op {writes}, not {spec.op}: give --op {writes}, or one of family "
            f"{' or '.join(serving(spec.op))}",
            param_hint="--config",
        )
    return config


def _given(text: str, spec: AttentionSpec, workload: Workload) -> KernelConfig:
    path = Path(text)
    if not path.exists():
        return parse_config(text, spec.op)
    value = load(path)
    if isinstance(value.data, dict) and "family" in value.data:
        return decode_config(value)
    return _from_rules(path, decode_file(value), spec, workload)


def _from_rules(path: Path, file: TunedFile, spec: AttentionSpec, workload: Workload) -> KernelConfig:
    entry = find_entry(file, spec, workload)
    if entry is None:
        has = ", ".join(sorted({entry.spec.key for entry in file.entries}))
        raise TunedConfigError(f"{path}: has no rule for {spec.key} and {workload.key}; it has: {has}")
    return entry.config
