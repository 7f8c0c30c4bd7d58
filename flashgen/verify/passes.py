"""The two passes of attention: how an emitted module is asked for each, and what its outputs must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flashgen.spec import Op
from flashgen.verify.expected import Expected, expected_gradients, expected_outputs
from flashgen.verify.fp8 import expected_fp8
from flashgen.verify.tensors import DESCALES, Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """`launch(module, rule, tensors)` fills the outputs by `rule`; `expect(tensors)` says by name what they must be.

    `tiled` are the tensors whose tiles kernels load and store, through TMA where the rule says so.
    """

    launch: Callable[[ModuleType, Any, Tensors], None]
    expect: Callable[[Tensors], dict[str, Expected]]
    tiled: tuple[str, ...]


def _launch_forward(module: ModuleType, rule: Any, tensors: Tensors) -> None:
    views = (tensors.view(name) for name in ("q", "k", "v", "out", "lse"))
    module._execute(rule, *views, *_scores(tensors), **_features(tensors))


def _launch_backward(module: ModuleType, rule: Any, tensors: Tensors) -> None:
    views = (tensors.view(name) for name in ("dout", "dlse", "q", "k", "v", "out", "lse", "dq", "dk", "dv"))
    features = _features(tensors)
    for feature, gradient in (("bias", "dbias"), ("sinks", "dsinks")):
        if feature in features:
            features[gradient] = tensors.view(gradient)
    module._execute_backward(rule, *views, *_scores(tensors), **features)


def _scores(tensors: Tensors) -> tuple[float, int, int, float]:
    scoring = tensors.scoring
    return scoring.scale, scoring.left, scoring.right, scoring.softcap


def _features(tensors: Tensors) -> dict[str, Any]:
    """The features' arguments, which only modules with such rules take."""
    given: dict[str, Any] = {
        name: tensors.inputs[name].view
        for name in ("alibi_slopes", "sinks", "seed", *DESCALES)
        if name in tensors.inputs
    }
    if tensors.features.bias is not None:
        q, k = tensors.inputs["q"].view, tensors.inputs["k"].view
        given["bias"] = tensors.inputs["bias"].view.expand(*q.shape[:3], k.shape[2])
    if tensors.features.keep is not None:
        given["dropout_p"] = tensors.features.dropout_p
    return given


def _expect_forward(tensors: Tensors) -> dict[str, Expected]:
    if DESCALES[0] in tensors.inputs:
        descales = tuple(tensors.inputs[name].view for name in DESCALES)
        return expected_fp8(*tensors.seen(), descales, tensors.scoring)
    return expected_outputs(*tensors.seen(), tensors.scoring, tensors.features)


def _expect_backward(tensors: Tensors) -> dict[str, Expected]:
    dout, dlse = tensors.inputs["dout"].view, tensors.view("dlse")
    return expected_gradients(*tensors.seen(), dout, tensors.scoring, tensors.features, dlse)


PASSES: dict[Op, Pass] = {
    "forward": Pass(launch=_launch_forward, expect=_expect_forward, tiled=("q", "k", "v", "out")),
    "backward": Pass(launch=_launch_backward, expect=_expect_backward, tiled=("q", "k", "v", "dout", "dq", "dk", "dv")),
}
