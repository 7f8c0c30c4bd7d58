"""Variants: a mask and the features with it. Which ones are tuned or emitted, and how one spec becomes another's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashgen.errors import SpecError
from flashgen.spec import FEATURES, AttentionSpec

FeatureSet = tuple[str, ...]  # in the order of spec.FEATURES

PLAIN: FeatureSet = ()
SOFTCAP: FeatureSet = ("softcap",)


def feature_set(text: str) -> FeatureSet:
    """The features of a text such as `alibi+dropout`, whatever their order.

    Raises:
        SpecError: a word that is no feature, or one that is there twice.
    """
    words = text.split("+")
    for word in words:
        if word not in FEATURES:
            raise SpecError(f"feature {word!r} is not one of {', '.join(FEATURES)}; join those of one kernel with '+'")
        if words.count(word) > 1:
            raise SpecError(f"feature {word!r} is named twice in {text!r}")
    return tuple(feature for feature in FEATURES if feature in words)


def variants_of(masks: Sequence[str], feature_sets: Iterable[FeatureSet]) -> tuple[str, ...]:
    """Every mask with every set of features; softcap comes with the window mask only, which calls without a window use
    as well.

    Raises:
        SpecError: a set with softcap, and no window among the masks.
    """
    found = []
    for features in dict.fromkeys(feature_sets):
        if "softcap" in features and "window" not in masks:
            raise SpecError(
                f"softcap is written for the window mask, which masks for every call that has it: "
                f"{'+'.join(features)} needs the window kernels too"
            )
        with_softcap = ("window",) if "softcap" in features else masks
        found += ["_".join((mask, *features)) for mask in with_softcap]
    return tuple(found)


def with_variant(spec: AttentionSpec, variant: str) -> AttentionSpec:
    """`spec` with another mask and other features; raises SpecError for what is no variant."""
    return AttentionSpec.of_variant(
        variant, dtype=spec.dtype, head_dim=spec.head_dim, head_dim_v=spec.head_dim_v, op=spec.op
    )
