"""Faults of synchronisation and of arithmetic, planted in the kernel's text one at a time: the model finds each."""

from __future__ import annotations

from typing import Any

import pytest

from flashgen.outcome import Rejected
from flashgen.spec import AttentionSpec
from tests.kernels.gluon.candidates import proven, source_of

PERSISTENT: dict[str, Any] = {"programs_per_sm": 1}
TWO_Q = PERSISTENT | {"q_stages": 2}
PING_PONG = {"ping_pong": True}
SKIPPING = PERSISTENT | {"BLOCK_M": 192, "num_stages": 1}  # of three blocks the first consumer skips two
SEEDS = 8  # some faults show only if one warp group is far ahead of another
BLOCKED, READ, LEFT = "wait for barriers", "used while it is under way", "ends with"

# (what is wrong, the knobs, the text, what it becomes, what the rejection says)
FAULTS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("K is never released", {}, "_gl_release(k_empty, count + i)", "pass", BLOCKED),
    ("V is never released", {}, "_gl_release(v_empty, count + i - 1)", "pass", BLOCKED),
    ("scores are used before their matmul ends", {}, "warpgroup_mma_wait(1, deps=(qk,))",
     "warpgroup_mma_wait(2, deps=(qk,))", READ),
    ("the output is used before its matmul ends", {}, "acc = warpgroup_mma_wait(0, deps=(acc,))\n        _gl_release",
     "acc = warpgroup_mma_wait(1, deps=(acc,))\n        _gl_release", READ),
    ("V is released while it is multiplied", {}, "        qk = warpgroup_mma_wait(1, deps=(qk,))\n",
     "        _gl_release(v_empty, count + i - 1)\n        qk = warpgroup_mma_wait(1, deps=(qk,))\n", ""),
    ("a slot is filled without waiting for it", {}, "    mbarrier.wait(empty.index(slot)",
     "    (empty.index(slot)", ""),
    ("a slot is waited for in the wrong phase", {}, "(count // SLOTS & 1) ^ 1)", "count // SLOTS & 1)", ""),
    ("a tile is used before it has arrived", {}, "    mbarrier.wait(full.index(count % SLOTS), count // SLOTS & 1)",
     "    pass", ""),
    ("fewer bytes are expected than come", {}, "descriptor.block_type.nbytes)",
     "descriptor.block_type.nbytes // 2)", ""),
    ("no fence before the store", {}, "    fence_async_shared()", "    pass", "no fence"),
    ("the store is not waited for", {}, "    tma.store_wait(0)", "    pass", LEFT),
    ("the next Q overwrites the output", PERSISTENT, "tma.store_wait(0)\n        _gl_release(q_empty, GROUP)",
     "_gl_release(q_empty, GROUP)\n        tma.store_wait(0)", ""),
    ("the next of two Qs overwrites an output", TWO_Q, "            tma.store_wait(0)\n            _gl_release(q_empty",
     "            _gl_release(q_empty", ""),
    ("of two Qs one is released while it is multiplied", TWO_Q, "(q_empty, (turn - 1) * GROUPS",
     "(q_empty, turn * GROUPS", ""),
    ("the last of two outputs is not waited for", TWO_Q, "\n    tma.store_wait(0)", "\n    pass", LEFT),
    ("blocks of keys are not counted on", PERSISTENT, "count += n_blocks", "count += 1", ""),
    ("the last round is lost", PERSISTENT, "return rounds + (", "return rounds + 0 * (", ""),
    ("the way back is one program off", PERSISTENT, "program = num_programs - 1 - program",
     "program = num_programs - program", ""),
    ("turns are not handed on", PING_PONG, "_gl_release(order, GROUP + 1)", "pass  ", BLOCKED),
    ("the first group waits for its own turn", PING_PONG, "(count + (GROUP == 0)) & 1", "count & 1", BLOCKED),
    ("a skipped block is not released", {}, "for i in range(first):", "for i in range(0 * first):", BLOCKED),
    ("a skipped K is released before it has come", SKIPPING, "_gl_arrived(k_smem, k_full, count + i)  #",
     "pass  #", ""),
    ("a skipped V is released before it has come", SKIPPING, "_gl_arrived(v_smem, v_full, count + i)\n", "pass\n", ""),
    ("the turn of a skipped block is not handed on", PING_PONG,
     "count - turn + i)\n        _gl_release(order, GROUP + 1)", "count - turn + i)", BLOCKED),
    ("the turn of a skipped block is not waited for", PING_PONG | {"BLOCK_M": 192, "num_stages": 4},
     "_gl_await_turn(order, GROUP, count - turn + i)", "pass", BLOCKED),
    ("every consumer skips what the first one's rows do not see", {},
     "        start_m,\n        seqlen_q,\n        seqlen_k,\n        64,",
     "        start_m - 64 * GROUP,\n        seqlen_q,\n        seqlen_k,\n        64,", ""),
    ("the mask is that of the last consumer's rows", {}, "if start_n >= n_full:",
     "if start_n >= n_full + 64 * (GROUPS - 1 - GROUP):", ""),
    ("a consumer skips a block that its rows see", {}, "first = gl.maximum(last_n - own_last_n, 0)",
     "first = gl.minimum(last_n - own_last_n + BLOCK_N, (n_blocks - 1) * BLOCK_N)", ""),
    ("blocks that rows past the end do not see are not released", {"BLOCK_M": 192}, "range(end, n_blocks)",
     "range(end, end)", BLOCKED),
    ("a consumer half of whose rows are past the end sees one block", {"BLOCK_M": 192}, "start_m < seqlen_q,",
     "start_m + 63 < seqlen_q,", ""),
    ("exponents of huge scores round up", {"fused_scale": True}, ">= 268435456.0", ">= 1e30", ""),
    ("the mask is one key short", {}, "keep = keys <= ", "keep = keys < ", ""),
    ("the mask stops at the last block", {}, "if start_n >= n_full:", "if start_n >= n_full + BLOCK_N:", ""),
    ("a tile that sees nothing loads nothing", {}, "if n_end <= n_begin:", "if n_end < n_begin - 4096:", ""),
    ("acc is not rescaled", {}, "acc = acc * gl.convert_layout(alpha",
     "acc = acc * gl.convert_layout(0 * alpha + 1", ""),
    ("l_i is not rescaled", {}, "l_i = l_i * alpha + gl.sum(p, 1)", "l_i = l_i + gl.sum(p, 1)", ""),
    ("sums of lanes are not rescaled", {"lane_sums": True}, "l_i = l_i * gl.convert_layout(alpha",
     "l_i = l_i * gl.convert_layout(0 * alpha + 1", ""),
    ("V is released before it has served", {"rescale_first": True},
     "acc = warpgroup_mma_wait(0, deps=(acc,))\n        _gl_release(v_empty, count + i - 1)",
     "_gl_release(v_empty, count + i - 1)\n        acc = warpgroup_mma_wait(0, deps=(acc,))", ""),
    ("V comes when K of its block may", {"rescale_first": True, "joint_release": True},
     "empty.index((count + 1) % SLOTS), ((count + 1) // SLOTS & 1) ^ 1",
     "empty.index(count % SLOTS), (count // SLOTS & 1) ^ 1", ""),
    ("a group stores the rows of another", {}, "start_m += 64 * GROUP", "start_m += 0 * GROUP", ""),
    ("K of the query's head", {}, "off_hk = off_h // qhead_per_kvhead", "off_hk = off_h", ""),
]  # fmt: skip

WINDOW_FAULTS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("a block behind the window is not released", SKIPPING, "range(end, n_blocks)", "range(end, end)", BLOCKED),
    ("the last block of the window is left out", {}, "first + own_blocks,",
     "first + gl.maximum(own_blocks - 1, 1),", ""),
    ("the turn of a block behind the window is another's", PING_PONG, "count - turn - 1 + i)", "count - turn + i)", ""),
]  # fmt: skip


WIDE_FAULTS: list[tuple[str, str, str, str]] = [
    ("P is overwritten before it was read", "        if step > 0:  # the other",
     "        if step > 4096:  # the other", ""),
    ("P is used before it is there", "mbarrier.wait(p_full.index(0), step & 1)", "pass", ""),
    ("dK is stored over a K that is multiplied", "mbarrier.wait(done.index(0), 0)", "pass", ""),
    ("dS is used before it is there", "    if num_steps > 0:\n        mbarrier.wait(",
     "    if num_steps > 0:\n        (", ""),
    ("dO is released while it is multiplied", "        dv = warpgroup_mma_wait(0, deps=(dv,))\n",
     "        _gl_release(do_empty, step)\n        dv = warpgroup_mma_wait(0, deps=(dv,))\n", ""),
    ("the last step has no dQ", "    if num_steps > 0:", "    if num_steps < 0:", ""),
    ("dQ of the last step goes to this one", "last_h, last_m = off_h, start_m", "last_m = start_m", ""),
    ("half of dQ is left out", "(HALF + 1) * COLUMNS, 64)", "(HALF + 1) * COLUMNS - 64, 64)", ""),
    ("dQ is overwritten before it has left", "        tma.store_wait(0)  # for", "        # for", ""),
]  # fmt: skip
BACKWARD_FAULTS: list[tuple[str, str, str, str]] = [
    ("Q is never released", "_gl_release(q_empty, step)", "pass", BLOCKED),
    ("dO is released while it is multiplied", "        dv, dk, dq = warpgroup_mma_wait(0, deps=(dv, dk, dq))",
     "        _gl_release(do_empty, step)\n        dv, dk, dq = warpgroup_mma_wait(0, deps=(dv, dk, dq))", ""),
    ("one tile of dS is not enough", "ds_smem.index(step % 2 * 2", "ds_smem.index(0 * 2", ""),
    ("dS of the other group is not waited for", "mbarrier.wait(ds_full.index(step % 2), step // 2 & 1)", "pass", ""),
    ("dK is stored over a K that is multiplied", "    mbarrier.wait(done.index(0), 0)", "    done.index(0)", ""),
    ("dQ is overwritten before it has left", "        tma.store_wait(0)  # for", "        # for", ""),
    ("rows are used before they have arrived", "mbarrier.wait(row_full.index(step % NUM_BUFFERS)",
     "(row_full.index(step % NUM_BUFFERS)", ""),
    ("dP is used before its matmul ends", "dp = warpgroup_mma_wait(1, deps=(dp,))",
     "dp = warpgroup_mma_wait(2, deps=(dp,))", READ),
    ("both groups add the same half of dQ", "half: tl.constexpr = GROUP * DQ_COLUMNS", "half = 0", ""),
    ("the mask ends too early", "if start_m < m_full:", "if start_m < m_full - 128:", ""),
    ("delta is left out", "ds = (p * (dp - delta[None, :]))", "ds = (p * dp)", ""),
    ("heads of a group are not added up", "for step in range(qhead_per_kvhead * num_m_blocks)",
     "for step in range(num_m_blocks)", ""),
]  # fmt: skip
# Of dQ a step later, and a sum of dQ as registers hold it.
ORDERED: dict[str, Any] = {"dq_later": True, "dq_as_held": True}
ORDERED_FAULTS: list[tuple[str, str, str, str]] = [
    ("dS is overwritten while it is multiplied", "        mbarrier.wait(ds_empty.index(slot)",
     "        (ds_empty.index(slot)", ""),
    ("dS is never released", "_gl_release(ds_empty, step)", "pass", BLOCKED),
    ("the last dS of the other group is not waited for", "left\n        mbarrier.wait(",
     "left\n        (", ""),
    ("before the first dS there is what was there", "    ds_smem.index(GROUP).store(zeros.to(DK.dtype))",
     "    pass", ""),
    ("the last step has no dQ", "step = num_steps ", "step = num_steps - 1 ", ""),
    ("dQ of the last step goes to this one", "last_h, last_m = off_h, start_m\n        start_m", "start_m", ""),
    ("all dQ goes where the first goes", "last_h, last_m = off_hk * qhead_per_kvhead, 0",
     "last_h, last_m = off_h, start_m", "dq: "),
    ("heads are not counted on", "off_h = gl.where(start_m == first_m, off_h + 1, off_h)", "pass", ""),
    ("dQ is read in another order", ".permute([1, 4, 2, 0, 3, 5])", ".permute([1, 2, 4, 0, 3, 5])", ""),
    ("the sum of dQ ends with the last query", "triton.cdiv(seqlen_q, 64) * 64, _padded", "seqlen_q, _padded", ""),
    ("rows behind the last query are not zeroed", "offs_m[:, None] < sum_rows", "offs_m[:, None] < seqlen_q", ""),
]  # fmt: skip
# Of the same, dK multiplied while dQ is stored.
RUNS_ON: dict[str, Any] = ORDERED | {"dk_runs_on": True}
RUNS_ON_FAULTS: list[tuple[str, str, str, str]] = [
    ("dQ is used before its matmul ends", "dv, dq = warpgroup_mma_wait(1,", "dv, dq = warpgroup_mma_wait(2,", READ),
    ("Q is released while dK is multiplied",
     "dk = warpgroup_mma_wait(0, deps=(dk,))\n        _gl_release(q_empty, step)",
     "_gl_release(q_empty, step)\n        dk = warpgroup_mma_wait(0, deps=(dk,))", "changed under a matmul"),
]  # fmt: skip
# Of the same, Q and dO by one barrier, dS with them.
RING: dict[str, Any] = RUNS_ON | {"one_ring": True, "num_stages": 2}
RING_FAULTS: list[tuple[str, str, str, str]] = [
    ("dO is used before it has come", "Q.block_type.nbytes + DO.block_type.nbytes", "Q.block_type.nbytes", ""),
    ("Q, dO and dS are released while dK is multiplied",
     "dk = warpgroup_mma_wait(0, deps=(dk,))\n        _gl_release(step_empty, step)",
     "_gl_release(step_empty, step)\n        dk = warpgroup_mma_wait(0, deps=(dk,))", ""),
]  # fmt: skip
# Of both in programs that loop over tiles.
STAYING_FAULTS: list[tuple[str, str, str, str]] = [
    ("the next K overwrites one that is multiplied", "mbarrier.wait(kv_empty.index(0)", "(kv_empty.index(0)", ""),
    ("one consumer releases K for both", "        _gl_release(kv_empty, turn)\n",
     "        if GROUP == 0:\n" + "            _gl_release(kv_empty, turn)\n" * 2, ""),
    ("K of the last tile is taken for this one's", "mbarrier.wait(kv_full.index(0), turn & 1)", "pass", ""),
    ("consumers do not count blocks on", "count += num_steps", "count += 0", ""),
    ("the producer does not count blocks on", "count += qhead_per_kvhead * num_m_blocks", "count += 0", ""),
    ("dS is not counted on from tile to tile", "step + turn", "step", ""),
    ("the last dS of a tile is never released", "_gl_release(ds_empty, count + num_steps + turn)", "pass", BLOCKED),
    ("dV overwrites dK before it has left", "tma.store_wait(0)\n        grad_smem.index(GROUP).store(dv",
     "grad_smem.index(GROUP).store(dv", ""),
    ("the last dV is not waited for", "\n    tma.store_wait(0)\n", "\n    pass\n", LEFT),
    ("the last head has no tiles", "_gl_turns(num_heads *", "_gl_turns((num_heads - 1) *", ""),
]  # fmt: skip
AROUND_FAULTS: list[tuple[str, str, str, str]] = [
    ("the last block of dQ is not zeroed", "zeros, mask=inside)",
     "zeros, mask=inside & (offs_m < (num_m_blocks - 1) * BLOCK_M)[:, None])", "elements are NaN"),
    ("the last columns of dQ are not zeroed", "offs_d[None, :] < HEAD_DIM)\n    zeros",
     "offs_d[None, :] < HEAD_DIM - 8)\n    zeros", "elements are NaN"),
    ("dQ is not scaled", '"evict_first") * softmax_scale', '"evict_first")', "dq: row error"),
    ("dQ is written past its columns", "offs_d[None, :] < HEAD_DIM)\n    sum_ptrs",
     "offs_d[None, :] < BLOCK_D)\n    sum_ptrs", "wrote outside dq"),
    ("dQ is written where its sum lies", "rows_m * stride_dqm", "rows_m * HEAD_DIM", "dq: "),
]  # fmt: skip


def rejection(source: str, spec: AttentionSpec) -> str:
    """Why the first order of events in which the fault shows is rejected."""
    for seed in range(SEEDS):
        if isinstance(outcome := proven(source, spec, seed), Rejected):
            return outcome.detail
    pytest.fail(f"exact in {SEEDS} orders of events")


@pytest.mark.parametrize(
    ("variant", "head_dim", "knobs", "old", "new", "says"),
    [("causal", 64, {}, *each[1:]) for each in BACKWARD_FAULTS]
    + [("causal", 64, ORDERED, *each[1:]) for each in ORDERED_FAULTS]
    + [("causal", 64, RUNS_ON, *each[1:]) for each in RUNS_ON_FAULTS]
    + [("causal", 64, RING, *each[1:]) for each in RING_FAULTS]
    + [("window", 64, ORDERED | PERSISTENT, *each[1:]) for each in STAYING_FAULTS]
    + [("causal", 192, {}, *each[1:]) for each in WIDE_FAULTS]
    + [("causal", 40, {}, *each[1:]) for each in AROUND_FAULTS],
    ids=[each[0] for each in BACKWARD_FAULTS]
    + [f"ordered, {each[0]}" for each in ORDERED_FAULTS]
    + [f"runs on, {each[0]}" for each in RUNS_ON_FAULTS]
    + [f"ring, {each[0]}" for each in RING_FAULTS]
    + [f"persistent, {each[0]}" for each in STAYING_FAULTS]
    + [f"wide, {each[0]}" for each in WIDE_FAULTS]
    + [each[0] for each in AROUND_FAULTS],
)
def test_a_fault_planted_in_the_backward_is_found(
    variant: str, head_dim: int, knobs: dict[str, Any], old: str, new: str, says: str
) -> None:
    spec = AttentionSpec.of_variant(
        variant, dtype="fp16", head_dim=head_dim, head_dim_v=min(head_dim, 128), op="backward"
    )
    source = source_of(spec, **knobs)
    assert old in source
    assert says in rejection(source.replace(old, new), spec)


def test_a_k_that_is_released_before_its_last_matmul_is_found() -> None:
    spec = AttentionSpec.of_variant("causal", dtype="fp16", head_dim=64, op="backward")
    source = source_of(spec, **ORDERED | PERSISTENT)
    release, last_product = "        _gl_release(kv_empty, turn)\n", "        if num_steps > 0:\n"
    assert release in source
    assert last_product in source
    moved = source.replace(release, "").replace(last_product, release + last_product)
    assert "shared memory changed under a matmul" in rejection(moved, spec)


@pytest.mark.parametrize(
    ("variant", "knobs", "old", "new", "says"),
    [("causal", *each[1:]) for each in FAULTS] + [("window", *each[1:]) for each in WINDOW_FAULTS],
    ids=[each[0] for each in FAULTS + WINDOW_FAULTS],
)
def test_a_planted_fault_is_found(variant: str, knobs: dict[str, Any], old: str, new: str, says: str) -> None:
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=64)
    source = source_of(spec, BLOCK_N=64, **knobs)
    assert old in source
    assert says in rejection(source.replace(old, new), spec)
