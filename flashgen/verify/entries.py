"""Proves the rules of tuned configs again, each as a module of its own: the one that was proven when it was tuned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from flashgen.codegen.candidate import candidate_source
from flashgen.codegen.kernel import kernel_names
from flashgen.families import FAMILIES
from flashgen.hardware.detect import detect_gpus, interpreter_is_forced
from flashgen.outcome import Proof, Rejected
from flashgen.spec import Dtype
from flashgen.store.directory import PORTABLE
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.verify.worker import RULE_TIMEOUT_S, Job, Worker


def prove_entries(
    files: Iterable[TunedFile], full: bool, seed: int = 0
) -> Iterator[tuple[str, Dtype, Proof | Rejected]]:
    """(GPU and rule, dtype that was run, outcome) as each is done: by the full suite on the file's GPU where this
    machine has it, else by the quick one in the interpreter.

    Without `full` and interpreted, one rule a kernel and head dim: tiles that differ only in size share their lines.
    Kernels that the interpreter does not run are left out there.

    Raises:
        FlashgenError: the prover itself failed.
    """
    here = {device.target.slug for device in detect_gpus()} if not interpreter_is_forced() else set()
    for file in files:
        interpret = not here or (file.gpu not in here and file.gpu != PORTABLE)
        able = [entry for entry in file.entries if not interpret or FAMILIES[entry.config.family].interpreted]
        entries = able if full or not interpret else _one_a_kernel(able)
        with Worker(interpret=interpret) as worker:
            for entry in entries:
                for dtype in _shown(entry, interpret):
                    yield (
                        f"{file.gpu} {entry.label}",
                        dtype,
                        worker.prove(_job(entry, dtype, interpret, seed), RULE_TIMEOUT_S),
                    )


def _one_a_kernel(entries: Iterable[TunedEntry]) -> list[TunedEntry]:
    kernels: dict[tuple[object, ...], TunedEntry] = {}
    for entry in entries:
        spec = entry.spec
        names = kernel_names(spec, entry.config).values()
        kernels.setdefault((*names, spec.head_dim, spec.head_dim_v), entry)
    return list(kernels.values())


def _shown(entry: TunedEntry, interpret: bool) -> tuple[Dtype, ...]:
    """The dtypes to run; the interpreter shows a bf16 kernel by its fp16 twin."""
    dtypes: list[Dtype] = ["fp16" if interpret and dtype == "bf16" else dtype for dtype in entry.dtypes]  # type: ignore[misc]
    return tuple(dict.fromkeys(dtypes))


def _job(entry: TunedEntry, dtype: Dtype, interpret: bool, seed: int) -> Job:
    spec = replace(entry.spec, dtype=dtype)
    suite = "quick" if interpret else "full"
    return Job(source=candidate_source(spec, entry.config), dtype=dtype, seed=seed, spec=spec, suite=suite)
