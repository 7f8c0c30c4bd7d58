"""A process that compiles candidates and keeps their binaries: `python -m tests.compiler.compile_cubins GPU FOLDER`.

Standard input holds a JSON list of [family, variant, dtype, head_dim, head_dim_v, op, knobs, edits]; edits are pairs of
a text of the source and what it becomes. The cubins of number i are FOLDER/i.<kernel>.cubin, beside their ttgir, and
their resources are printed, a JSON object by kernel a line.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from triton.runtime import driver

from flashgen.compiler import crosscompile
from flashgen.compiler.binary import resources_of
from flashgen.compiler.load import load_source
from flashgen.families import FAMILIES
from flashgen.hardware.lookup import find_gpu
from flashgen.spec import AttentionSpec


def main() -> None:
    target, folder = find_gpu(sys.argv[1]), Path(sys.argv[2])
    driver.set_active(crosscompile._driver(target))
    for index, (family, variant, dtype, head_dim, head_dim_v, op, knobs, edits) in enumerate(json.load(sys.stdin)):
        spec = AttentionSpec.of_variant(variant, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, op=op)
        unit = crosscompile.unit_of(spec, FAMILIES[family].config(knobs))
        source = unit.source
        for old, new in edits:
            assert old in source
            source = source.replace(old, new)
        kernels = crosscompile._warm_up(load_source(source, "golden"), unit)
        for kernel in kernels:
            (folder / f"{index}.{kernel.name}.cubin").write_bytes(kernel.asm["cubin"])
            (folder / f"{index}.{kernel.name}.ttgir").write_text(kernel.asm["ttgir"])
        print(json.dumps({kernel.name: asdict(resources_of(kernel)) for kernel in kernels}), flush=True)


if __name__ == "__main__":
    main()
