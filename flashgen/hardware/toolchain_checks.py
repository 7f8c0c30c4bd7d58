"""Checks of Python, torch, triton and numpy, and of the tools that Triton's wheel ships."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from flashgen.hardware.checks import Finding, Supported, fail, ok, release, warn
from flashgen.hardware.detect import torch_build
from flashgen.hardware.nvidia_smi import has_nvidia_smi

PYTHON = Supported(package="Python", oldest=(3, 11), newest=(3, 13))
TORCH = Supported(package="torch", oldest=(2, 11), newest=(2, 14))
TRITON = Supported(package="triton", oldest=(3, 6), newest=(3, 9))

_TOOLS = ("ptxas", "cuobjdump")
_COMPILE_TIMEOUT_S = 120

# Triton reads a kernel's source back from its file, so this must be run as one.
_TRIAL = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def double(src, dst, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(dst + offs, 2 * tl.load(src + offs))


signature = {"src": "*fp32", "dst": "*fp32", "BLOCK": "constexpr"}
source = ASTSource(fn=double, signature=signature, constexprs={"BLOCK": 128})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(len(kernel.asm["cubin"]))
"""


def python() -> Finding:
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return PYTHON.judge(version, f"Python {version}")


def torch() -> Finding:
    import torch as module

    build = torch_build(module)
    if module.version.cuda is None and module.version.hip is None:
        build = f"{build} (CPU build)"
        if has_nvidia_smi():
            return warn(f"{build} on a machine with nvidia-smi", "install a CUDA build of torch to measure on the GPU")
    return TORCH.judge(module.__version__, build)


def triton() -> Finding:
    import triton as module

    return TRITON.judge(module.__version__, f"triton {module.__version__}")


def pairing() -> Finding:
    """torch's metadata pins the triton release that its own compiler was built against; CPU builds pin none."""
    import triton as module

    pinned = _pinned_triton(importlib.metadata.requires("torch") or [])
    if pinned is None:
        return ok(f"this torch asks for no particular triton; triton {module.__version__} is used")
    if release(pinned) == release(module.__version__):
        return ok(f"torch asks for triton {pinned}, and triton {module.__version__} is installed")
    return warn(
        f"torch asks for triton {pinned}, but triton {module.__version__} is installed: torch.compile may break",
        f"install triton {pinned}",
    )


def _pinned_triton(requirements: list[str]) -> str | None:
    """The release in a requirement such as `triton==3.6.0; platform_system == "Linux"` or `triton-rocm==3.6.0`."""
    for requirement in requirements:
        match = re.match(r"(?:pytorch-)?triton(?:-rocm)?\s*\(?\s*==\s*([\d.]+)", requirement)
        if match:
            return match[1]
    return None


def numpy() -> Finding:
    """Triton 3.6's interpreter turns one-element arrays into scalars, which numpy 2.4 made an error."""
    import triton as module

    try:
        version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        return warn(
            "numpy is missing, and Triton's interpreter needs it", "install numpy to prove kernels without a GPU"
        )
    if release(module.__version__) <= (3, 6) and release(version) >= (2, 4):
        detail = f"numpy {version} breaks the interpreter of triton {module.__version__}"
        return warn(detail, "install numpy below 2.4, or triton 3.7 or later, to prove kernels without a GPU")
    return ok(f"numpy {version}")


def nvidia_tools() -> Finding:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return fail("triton is not installed", "install triton")
    folder = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
    missing = [tool for tool in _TOOLS if not os.access(folder / tool, os.X_OK)]
    if missing:
        detail = f"{' and '.join(missing)} missing or not executable in {folder}"
        return fail(detail, "reinstall triton from its Linux wheel: kernels for NVIDIA GPUs cannot be compiled")
    return ok(f"{' and '.join(_TOOLS)} come with triton")


def cross_compile() -> Finding:
    """A fresh process, an empty cache: what a broken install would make crash or hang must not take us with it."""
    with tempfile.TemporaryDirectory(prefix="flashgen-doctor-") as folder:
        script = Path(folder) / "trial.py"
        script.write_text(_TRIAL)
        # The interpreter would replace the compiler.
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["TRITON_CACHE_DIR"] = str(Path(folder) / "cache")
        try:
            trial = subprocess.run(
                [sys.executable, str(script)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            detail = f"compiling a five-line kernel for sm_90 took more than {_COMPILE_TIMEOUT_S} s"
            return fail(detail, "look for a machine under heavy load, or reinstall triton")
    if trial.returncode != 0:
        last = next(iter(reversed(trial.stderr.strip().splitlines())), f"exit status {trial.returncode}")
        return fail(f"triton cannot compile for sm_90 here: {last}", "reinstall triton")
    return ok(f"triton compiles for sm_90 ({trial.stdout.strip()} bytes of cubin)")
