"""The prover's own process: `python -m flashgen.verify.serve`, see worker.Worker.

Requests: {"ask": "rules", "source"} and {"ask": "proof", "source", "rule", "dtype", "spec", "suite", "seed",
"stop_at_failure"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from flashgen.compiler.classify import run_failure
from flashgen.compiler.invoke import all_rules
from flashgen.compiler.load import load_source
from flashgen.errors import FlashgenError
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.spec import AttentionSpec, Dtype
from flashgen.verify.probes import Suite
from flashgen.verify.prove import prove_rule
from flashgen.verify.rules import describe_rules, spec_of
from flashgen.verify.serving import Reply, Say, serve
from flashgen.verify.suites import SUITES


@dataclass(frozen=True, kw_only=True, slots=True)
class Prover:
    """Answers about emitted modules. `device` None is the CPU for a module that is interpreted, else the first GPU."""

    say: Say
    suites: Mapping[str, Suite] = field(default_factory=lambda: SUITES)
    device: str | None = None

    def answer(self, request: dict[str, Any]) -> Reply:
        module = _load(request["source"])
        if request["ask"] == "rules":
            return {"rules": describe_rules(module, self._device(module))}
        outcome = self._prove(module, request)
        return {"proof" if isinstance(outcome, Proof) else "rejected": asdict(outcome)}

    def _prove(self, module: ModuleType, request: dict[str, Any]) -> Proof | Rejected:
        rule = all_rules(module)[request["rule"]]
        dtype: Dtype = request["dtype"]
        try:
            return prove_rule(
                module,
                rule,
                AttentionSpec(**request["spec"]) if request["spec"] else spec_of(rule, dtype),
                dtype,
                self._device(module),
                self.suites[request["suite"]],
                request["seed"],
                stop_at_failure=request["stop_at_failure"],
                on_probe=lambda name: self.say(f"probe {name!r}"),
            )
        except Exception as error:
            # A kernel that strayed may be found out by the next one, which is the prover's.
            if (rejected := run_failure(error)).reason is Reason.COMPILE:
                raise
            return rejected

    def _device(self, module: ModuleType) -> Any:
        import torch

        return torch.device(self.device or ("cpu" if module.INTERPRETED else "cuda:0"))


def _load(source: str) -> ModuleType:
    module = load_source(source, "proven")
    if missing := [name for name in ("TUNED", "PORTABLE", "_rules_of") if not hasattr(module, name)]:
        raise FlashgenError(f"the source is no emitted module: it defines no {missing[0]}")
    return module


if __name__ == "__main__":
    serve(lambda say: Prover(say=say).answer)
