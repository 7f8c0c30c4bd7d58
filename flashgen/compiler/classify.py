"""The one place that reads triton's errors: what a candidate's failure to compile or run means."""

from __future__ import annotations

from flashgen.outcome import Reason, Rejected

# The messages of the errors that "leave the process in an inconsistent state" (CUDA Runtime API, cudaError).
_POISONED = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "illegal instruction",
    "invalid program counter",
    "hardware stack error",
    "operation not supported on global/shared address space",
    "launch timed out",
)
_BROKEN = ("uncorrectable ecc error", "uncorrectable nvlink error")  # as bad, and no kernel's doing
_WONT_LAUNCH = ("out of resource", "out of memory", "invalid argument", "too many resources")


def one_line(error: BaseException, limit: int = 240) -> str:
    """The error's type and text on one line of at most `limit` characters, both ends kept."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= limit else f"{text[: limit // 2 - 3]} ... {text[-(limit // 2 - 3) :]}"


def compile_failure(error: Exception) -> Rejected:
    """A candidate that the compiler refused (pass failures, ptxas errors, limits of the language)."""
    return Rejected(reason=Reason.COMPILE, detail=one_line(error))


def run_failure(error: Exception) -> Rejected:
    """A candidate that failed at launch or after. After CRASHED and KILLED the process's CUDA context is gone."""
    text = str(error).lower()
    if any(sign in text for sign in _POISONED):
        return Rejected(reason=Reason.CRASHED, detail=one_line(error))
    if any(sign in text for sign in _BROKEN):
        return Rejected(reason=Reason.KILLED, detail=one_line(error))
    if any(sign in text for sign in _WONT_LAUNCH) or type(error).__name__ in ("OutOfResources", "OutOfMemoryError"):
        return Rejected(reason=Reason.LAUNCH, detail=one_line(error))
    return Rejected(reason=Reason.COMPILE, detail=one_line(error))
