"""The worker's own process: `python -m flashgen.verify.serve` answers requests, a JSON object a line, on its stdout.

Requests: {"ask": "rules", "source"} and {"ask": "proof", "source", "rule", "dtype", "spec", "suite", "seed",
"stop_at_failure"}. Before a probe is run its name is sent, so that whoever waits knows where a process died.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

from flashgen.compiler.load import load_source
from flashgen.errors import FlashgenError
from flashgen.outcome import Proof
from flashgen.spec import AttentionSpec, Dtype
from flashgen.verify.prove import prove_rule
from flashgen.verify.suites import SUITES

Send = Callable[[dict[str, Any]], None]

_DTYPES: dict[str, Dtype] = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


def main() -> None:
    # What a kernel or a library prints must not mix with replies: stdout becomes stderr, replies get a copy.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    for line in sys.stdin:
        send(answer(json.loads(line), send))


def answer(request: dict[str, Any], send: Send) -> dict[str, Any]:
    """The reply to one request; an error of this package or of the module's import comes back as its traceback."""
    try:
        module = _load(request["source"])
        if request["ask"] == "rules":
            return {"rules": describe_rules(module)}
        return _prove(module, request, send)
    except Exception as error:  # the process that asked raises it
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _load(source: str) -> ModuleType:
    module = load_source(source, "proven")
    if missing := [name for name in ("TUNED", "PORTABLE", "_execute", "_rules_of") if not hasattr(module, name)]:
        raise FlashgenError(f"the source is no emitted module: it defines no {missing[0]}")
    return module


def describe_rules(module: ModuleType) -> list[dict[str, Any]]:
    """Every rule of an emitted module, tuned ones first. `own` marks those that this device runs."""
    own = {id(rule) for rule in module._rules_of(_device(module))}
    return [
        {
            "name": _name(rule),
            "kernel": f"{rule.config.kernel.__name__} {rule.head_dim}/{rule.head_dim_v}",
            "dtypes": [_DTYPES[str(dtype)] for dtype in rule.dtypes],
            "own": id(rule) in own,
        }
        for rule in all_rules(module)
    ]


def all_rules(module: ModuleType) -> list[Any]:
    return [rule for _, rules in module.TUNED for rule in rules] + list(module.PORTABLE)


def _name(rule: Any) -> str:
    """Such as `_attn_fwd_causal_tma, head_dim 64, tile 128x64, 8 warps, 2 stages`."""
    config = rule.config
    head = f"{rule.head_dim}" if rule.head_dim == rule.head_dim_v else f"{rule.head_dim}/{rule.head_dim_v}"
    tile = f"tile {config.BLOCK_M}x{config.BLOCK_N}, {config.num_warps} warps, {config.num_stages} stages"
    limit = "" if rule.max_seqlen_k is None else f", up to {rule.max_seqlen_k} keys"
    return f"{config.kernel.__name__}, head_dim {head}, {tile}{limit}"


def _device(module: ModuleType) -> Any:
    import torch

    return torch.device("cpu" if module.INTERPRETED else "cuda:0")


def _prove(module: ModuleType, request: dict[str, Any], send: Send) -> dict[str, Any]:
    rule = all_rules(module)[request["rule"]]
    dtype: Dtype = request["dtype"]
    spec = AttentionSpec(**request["spec"]) if request["spec"] else _spec_of(rule, dtype)
    outcome = prove_rule(
        module,
        rule,
        spec,
        dtype,
        _device(module),
        SUITES[request["suite"]],
        request["seed"],
        stop_at_failure=request["stop_at_failure"],
        on_probe=lambda name: send({"probe": name}),
    )
    return {"proof" if isinstance(outcome, Proof) else "rejected": asdict(outcome)}


def _spec_of(rule: Any, dtype: Dtype) -> AttentionSpec:
    """What a rule of an emitted module computes."""
    mask, _, softcap = rule.variant.partition("_")
    return AttentionSpec(
        dtype=dtype,
        head_dim=rule.head_dim,
        head_dim_v=rule.head_dim_v,
        causal=mask == "causal",
        window=mask == "window",
        softcap=softcap == "softcap",
    )


if __name__ == "__main__":
    main()
