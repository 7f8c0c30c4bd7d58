"""The probes that a candidate must pass before it is timed; whoever wins is proven by a whole suite besides.

Triton compiles a kernel anew for each class of sizes (multiples of 16, other sizes), at seconds a class. These probes
keep to two: the class that is timed, and ragged sizes, under which most faults show.
"""

from __future__ import annotations

from dataclasses import replace

from flashgen.verify.probes import FORWARD, Fill, Probe, Suite

_SHARP = Fill(kind="grid", gain=30.0)
_LESS_SHARP = Fill(kind="grid", gain=16.0)  # P is recomputed of an lse in fp32, which large scores would round

_FORWARD = (
    Probe(name="as timed", shape=(1, 16, 16, 256, 512)),
    Probe(name="ragged", shape=(2, 4, 2, 37, 69)),
    Probe(name="one beyond the tiles", shape=(1, 4, 2, 129, 257)),
    Probe(name="one short of the tiles", shape=(1, 4, 2, 127, 255)),
    Probe(name="leading tiles hidden", shape=(1, 4, 2, 301, 41)),
    Probe(name="sharp", shape=(1, 4, 2, 65, 193), q=_SHARP, k=Fill(kind="grid")),
    Probe(name="rising", shape=(1, 4, 2, 71, 301), q=FORWARD, k=Fill(kind="rising", gain=4.0)),
    Probe(name="huge last key", shape=(1, 4, 2, 41, 301), q=FORWARD, k=Fill(kind="last", gain=30.0)),
    Probe(name="far from zero", shape=(1, 4, 2, 41, 151), v=Fill(offset=1000.0)),
    Probe(name="narrow window", shape=(1, 4, 2, 151, 301), window=(67, 5), only="window"),
    Probe(name="window before the first key", shape=(1, 4, 2, 301, 41), window=(7, 3), only="window"),
    Probe(name="large ragged", shape=(2, 4, 2, 1023, 1025)),
    Probe(name="large as timed", shape=(1, 16, 16, 1024, 2048)),
)

_BACKWARD = tuple(
    replace(probe, op="backward")
    for probe in (
        Probe(name="as timed", shape=(1, 16, 16, 256, 512)),
        Probe(name="ragged", shape=(2, 4, 2, 37, 69), dlse=True),
        Probe(name="one beyond the tiles", shape=(1, 4, 2, 129, 257)),
        Probe(name="one short of the tiles", shape=(1, 4, 2, 127, 255)),
        Probe(name="leading tiles hidden", shape=(1, 4, 2, 301, 41)),
        Probe(name="leading tiles of keys hidden", shape=(1, 4, 2, 41, 301)),
        Probe(name="sharp", shape=(1, 4, 2, 65, 193), q=_LESS_SHARP, k=Fill(kind="grid")),
        Probe(name="rising", shape=(1, 4, 2, 71, 301), q=FORWARD, k=Fill(kind="rising", gain=4.0)),
        Probe(name="far from zero", shape=(1, 4, 2, 41, 151), v=Fill(offset=1000.0)),
        Probe(name="7 queries a kv head", shape=(1, 7, 1, 45, 67)),
        Probe(name="narrow window", shape=(1, 4, 2, 151, 301), window=(67, 5), only="window"),
        Probe(name="window before the first key", shape=(1, 4, 2, 301, 41), window=(7, 3), only="window"),
        Probe(name="large ragged", shape=(2, 4, 2, 1023, 1025), dlse=True),
        Probe(name="large as timed", shape=(1, 16, 16, 1024, 2048)),
    )
)

CANDIDATE = Suite(name="candidate", probes=_FORWARD + _BACKWARD)
