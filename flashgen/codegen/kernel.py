"""One kernel: its name and its text."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.codegen.environment import render
from flashgen.config import KernelConfig
from flashgen.families import FAMILIES
from flashgen.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A rendered kernel: `name` is its function, `source` the text from its decorator on."""

    name: str
    source: str


def kernel_name(spec: AttentionSpec, config: KernelConfig) -> str:
    """Such as `_attn_fwd_causal_tma`: kernels of one module that have different lines have different names."""
    structure = FAMILIES[config.family].structure(spec, config)
    precision = "fp32" if spec.is_fp32 else ""
    return "_".join(part for part in ("_attn_fwd", spec.variant, precision, structure) if part)


def render_kernel(spec: AttentionSpec, config: KernelConfig) -> Kernel:
    """The kernel that computes `spec` the way `config` says.

    Raises:
        TemplateError: the template is wrong.
    """
    name = kernel_name(spec, config)
    template = FAMILIES[config.family].kernel_template(spec, config)
    return Kernel(name=name, source=render(template, spec=spec, config=config, name=name))
