"""The order of a run, and which specs share a rule."""

from __future__ import annotations

from dataclasses import replace

from flashgen.families import FAMILIES
from flashgen.spec import AttentionSpec
from flashgen.tune.failures import unsupported
from flashgen.tune.plan import Job, plan
from flashgen.tune.request import specs_of
from tests.tune.replay import H200, spec_of


def jobs_of(*specs: AttentionSpec) -> list[Job]:
    return plan(specs, H200, FAMILIES)


def test_both_16_bit_dtypes_are_one_job_and_searches_come_before_windows() -> None:
    jobs = jobs_of(*specs_of([64, 128], ["fp16", "bf16"]))
    assert len(jobs) == 8
    assert all((job.spec.dtype, job.also) == ("bf16", "fp16") for job in jobs)
    assert [job.base is None for job in jobs] == [True] * 4 + [False] * 4
    assert {job.base for job in jobs if job.base} == {spec_of(head_dim=d, causal=True) for d in (64, 128)}


def test_features_take_after_the_plain_kernel_of_their_mask_and_windows_after_causal() -> None:
    variants = ["causal_dropout", "full_alibi_bias", "window_softcap_sink", "causal", "full"]
    jobs = jobs_of(*specs_of([64], ["bf16"], variants))
    assert [(job.spec.variant, job.base and job.base.variant) for job in jobs] == [
        ("causal", None),
        ("full", None),
        ("causal_dropout", "causal"),
        ("full_alibi_bias", "full"),
        ("window_softcap_sink", "causal"),
    ]


def test_ops_come_one_after_the_other_and_keep_to_themselves() -> None:
    jobs = jobs_of(*specs_of([64], ["bf16", "fp16"], ["causal_dropout", "causal"], ["backward", "forward"]))
    assert [(job.spec.op, job.base is None, job.also) for job in jobs] == [
        ("forward", True, "fp16"),
        ("forward", False, "fp16"),
        ("backward", True, "fp16"),
        ("backward", False, "fp16"),
    ]
    assert all(job.base is None or job.base.op == job.spec.op for job in jobs)


def test_an_op_that_no_family_of_the_run_writes_is_answered() -> None:
    spec = spec_of("bf16", op="backward")
    assert [job.spec for job in plan([spec], H200, {"tl": FAMILIES["tl"]})] == [spec]
    assert unsupported(spec, H200, {"tl": FAMILIES["tl"]}) == (
        "no family writes backward-bf16-d128-full for nvidia-h200: none of ['tl'] is for op backward"
    )
    assert unsupported(spec, H200, FAMILIES) is None


def test_a_dtype_that_is_asked_for_alone_is_a_job_of_its_own() -> None:
    assert jobs_of(spec_of("fp16")) == [Job(spec=spec_of("fp16"))]
    assert [job.also for job in jobs_of(spec_of("bf16"), spec_of("fp32"), spec_of("fp16", 64))] == [None] * 3


def test_a_spec_that_is_named_twice_is_one_job() -> None:
    assert len(jobs_of(spec_of(), spec_of())) == 1


def test_where_a_gpu_has_no_bf16_the_fp16_rule_says_so() -> None:
    old = replace(H200, has_bf16=False)
    (job,) = plan(specs_of([64], ["bf16", "fp16"], ["full"]), old, FAMILIES)
    assert job.spec.dtype == "fp16"
    assert job.also is None
    assert "bf16 is not served" in job.notes[0]
    assert [job.spec.dtype for job in plan([spec_of("bf16")], old, FAMILIES)] == ["bf16"]


def test_what_no_family_writes_in_either_dtype_is_still_answered() -> None:
    ancient = replace(H200, arch="sm_70", has_bf16=False)
    jobs = plan(specs_of([64], ["bf16", "fp16"], ["full"]), ancient, FAMILIES)
    assert {job.spec.dtype for job in jobs} == {"bf16", "fp16"}
