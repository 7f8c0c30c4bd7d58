"""The kernels of one rule: their names and their texts."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.codegen.environment import render
from flashgen.config import KernelConfig
from flashgen.families import FAMILIES
from flashgen.spec import AttentionSpec

# What fragments call the language and the device function for tanh; a skeleton in another language sets its own.
_LANGUAGE = {"tl": "tl", "tanh": "_tanh"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A rendered kernel: `name` is its function, `source` the text from its decorator on."""

    name: str
    source: str


def kernel_names(spec: AttentionSpec, config: KernelConfig) -> dict[str, str]:
    """By role, such as `_attn_fwd_causal_tma`: kernels of one module that differ in a line differ in their names."""
    family = FAMILIES[config.family]
    words = (spec.variant, spec.dtype if spec.is_fp32 or spec.is_fp8 else "", family.structure(spec, config))
    return {
        role: "_".join(part for part in (f"_attn_{role}", *words) if part)
        for role in family.kernel_templates(spec, config)
    }


def render_kernels(spec: AttentionSpec, config: KernelConfig) -> dict[str, Kernel]:
    """The kernels, by role, that compute `spec` the way `config` says; those that others call come first.

    Raises:
        TemplateError: a template is wrong.
    """
    names = kernel_names(spec, config)
    context = {"spec": spec, "config": config, "names": names, **_LANGUAGE}
    return {
        role: Kernel(name=names[role], source=render(template, name=names[role], **context))
        for role, template in FAMILIES[config.family].kernel_templates(spec, config).items()
    }
