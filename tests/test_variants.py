"""Which variants a set of masks and features comes to."""

from __future__ import annotations

import pytest

from flashgen.errors import SpecError
from flashgen.spec import FEATURES, MASKS, AttentionSpec
from flashgen.variants import PLAIN, SOFTCAP, feature_set, variants_of, with_variant


def test_the_order_in_which_features_are_named_does_not_matter() -> None:
    assert feature_set("dropout+alibi") == feature_set("alibi+dropout") == ("alibi", "dropout")
    assert feature_set("+".join(reversed(FEATURES))) == FEATURES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rope", "feature 'rope' is not one of softcap, alibi, bias, sink, dropout"),
        ("alibi,dropout", "join those of one kernel with '\\+'"),
        ("alibi+", "feature ''"),
        ("bias+bias", "feature 'bias' is named twice"),
    ],
)
def test_what_is_no_feature_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        feature_set(text)


def test_every_mask_has_every_set_and_softcap_only_the_window() -> None:
    assert variants_of(MASKS, (PLAIN, SOFTCAP)) == ("full", "causal", "window", "window_softcap")
    assert variants_of(("full", "causal"), (("alibi", "dropout"),)) == ("full_alibi_dropout", "causal_alibi_dropout")
    assert variants_of(MASKS, (("softcap", "sink"),)) == ("window_softcap_sink",)
    assert variants_of(MASKS, (("bias",), ("bias",))) == ("full_bias", "causal_bias", "window_bias")


def test_softcap_without_a_window_is_refused() -> None:
    with pytest.raises(SpecError, match=r"softcap\+sink needs the window kernels too"):
        variants_of(("full", "causal"), (PLAIN, ("softcap", "sink")))


def test_another_variant_is_all_that_changes() -> None:
    spec = AttentionSpec(op="backward", dtype="fp16", head_dim=192, head_dim_v=128, causal=True, alibi=True)
    found = with_variant(spec, "window_softcap_dropout")
    assert found.key == "backward-fp16-d192v128-window-softcap-dropout"
    assert with_variant(found, spec.variant) == spec
