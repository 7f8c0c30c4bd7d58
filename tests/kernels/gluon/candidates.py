"""Candidates of family `gluon_sm90` as modules on the modelled machine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.load import load_source
from flashgen.config import KernelConfig
from flashgen.families import GluonSm90BackwardConfig, GluonSm90Config
from flashgen.outcome import Proof, Rejected
from flashgen.spec import AttentionSpec
from flashgen.verify.probes import Suite
from flashgen.verify.prove import prove_rule
from flashgen.verify.suites import SUITES
from tests.kernels.gluon.language import SEED, interpreted_gluon


def source_of(spec: AttentionSpec, **knobs: Any) -> str:
    return candidate_source(spec, config_of(spec, **knobs))


def config_of(spec: AttentionSpec, **knobs: Any) -> KernelConfig:
    if spec.op == "backward":
        keys = 64 if max(spec.block_d, spec.block_dv) > 128 else 128
        return GluonSm90BackwardConfig(**{"BLOCK_M": 64, "BLOCK_N": keys, "num_stages": 2} | knobs)
    tile = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2, "longest_first": spec.mask != "full"}
    return GluonSm90Config(**tile | knobs)


def loaded(source: str) -> ModuleType:
    with interpreted_gluon():
        return load_source(source, "modelled")


def proven(source: str, spec: AttentionSpec, seed: int = 0, suite: Suite = SUITES["quick"]) -> Proof | Rejected:
    """What the suite says of the module's only rule, in fp16 or fp8."""
    module, SEED.seed = loaded(source), seed
    return prove_rule(module, module.PORTABLE[0], spec, spec.dtype, "cpu", suite, seed, stop_at_failure=True)
