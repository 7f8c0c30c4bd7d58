"""A candidate as a module of its own: what is compiled, proven and timed is what would be emitted."""

from __future__ import annotations

from textwrap import wrap

from flashgen import __version__
from flashgen.codegen.module import ModuleContent, Row, render_kernel_text, render_module
from flashgen.config import KernelConfig
from flashgen.spec import AttentionSpec

_LINE_LENGTH = 120


def candidate_source(spec: AttentionSpec, config: KernelConfig) -> str:
    """An emitted module whose only rule, PORTABLE[0], is `config` for `spec` in its dtype.

    Raises:
        TemplateError: a template is wrong.
    """
    return render_module(_content(spec, config))


def candidate_kernels(spec: AttentionSpec, config: KernelConfig) -> str:
    """The part of that module which runs on the GPU: its device functions and kernels.

    Raises:
        TemplateError: a template is wrong.
    """
    return render_kernel_text(_content(spec, config))


def _content(spec: AttentionSpec, config: KernelConfig) -> ModuleContent:
    return ModuleContent(
        gpus=(),
        portable=(Row(spec=spec, dtypes=(spec.dtype,), config=config),),
        portable_shared_bytes=0,
        facts=(f"A candidate for {spec.key}:", *wrap(config.key.replace(",", ", "), _LINE_LENGTH)),
        command="flashgen tune",
        version=__version__,
    )
