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
from flashgen.verify.rules import all_rules, describe_rules, spec_of
from flashgen.verify.suites import SUITES

Send = Callable[[dict[str, Any]], None]


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
            return {"rules": describe_rules(module, _device(module))}
        return _prove(module, request, send)
    except Exception as error:  # the process that asked raises it
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _load(source: str) -> ModuleType:
    module = load_source(source, "proven")
    if missing := [name for name in ("TUNED", "PORTABLE", "_rules_of") if not hasattr(module, name)]:
        raise FlashgenError(f"the source is no emitted module: it defines no {missing[0]}")
    return module


def _device(module: ModuleType) -> Any:
    import torch

    return torch.device("cpu" if module.INTERPRETED else "cuda:0")


def _prove(module: ModuleType, request: dict[str, Any], send: Send) -> dict[str, Any]:
    rule = all_rules(module)[request["rule"]]
    dtype: Dtype = request["dtype"]
    spec = AttentionSpec(**request["spec"]) if request["spec"] else spec_of(rule, dtype)
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


if __name__ == "__main__":
    main()
