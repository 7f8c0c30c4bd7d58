"""How well orders of a causal forward's tiles fill the SMs, by arithmetic: `python benchmarks/tile_order.py`.

A tile costs its blocks of keys plus a share for what nothing overlaps: its first loads and last store where each tile
is a program of its own, less in a persistent loop. Printed is the ideal time over the makespan.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import ceil

PROGRAMS = 132  # SMs of an H200, one program each
ALONE, IN_A_LOOP = 1.3, 0.4  # blocks; assumed, and to be replaced by what the GPU says
SHAPES = ((64, 192, 128, 32), (128, 128, 128, 16), (256, 128, 64, 8))  # head_dim, BLOCK_M, BLOCK_N, heads
TOKENS = 16384
_WIDTHS = (8, 6, 11, 13, 11, 14)


def blocks(seqlen: int, heads: int, block_m: int, block_n: int, heads_per_group: int) -> list[int]:
    """Blocks of keys of every causal tile, longest first within each group of heads."""
    num_m_blocks = ceil(seqlen / block_m)
    return [
        ceil(min(seqlen, (m_block + 1) * block_m) / block_n)
        for first in range(0, heads, heads_per_group)
        for m_block in reversed(range(num_m_blocks))
        for _ in range(min(heads_per_group, heads - first))
    ]


def one_a_program(tiles: Sequence[int]) -> float:
    """The hardware starts the next program where one has ended."""
    ends = [0.0] * PROGRAMS
    for tile in tiles:
        heapq.heapreplace(ends, ends[0] + tile + ALONE)
    return max(ends)


def persistent(tiles: Sequence[int], *, back_and_forth: bool) -> float:
    """Program p takes the p-th tile of each round, or in every other round the p-th from its end."""
    ends = [0.0] * PROGRAMS
    for index, tile in enumerate(tiles):
        turn, program = divmod(index, PROGRAMS)
        ends[PROGRAMS - 1 - program if back_and_forth and turn % 2 else program] += tile + IN_A_LOOP
    return max(ends)


def main() -> None:
    columns = ("head_dim", "seqlen", "heads/group", "one a program", "round robin", "back and forth")
    print(*(f"{name:>{width}}" for name, width in zip(columns, _WIDTHS)))
    for head_dim, block_m, block_n, heads_of_one in SHAPES:
        for seqlen in (1024, 4096, 16384):
            heads = heads_of_one * TOKENS // seqlen
            for group in (1, 8, heads):
                tiles = blocks(seqlen, heads, block_m, block_n, group)
                ideal = sum(tiles) / PROGRAMS
                spans = (one_a_program(tiles), *(persistent(tiles, back_and_forth=each) for each in (False, True)))
                row = (head_dim, seqlen, group, *(f"{ideal / span:.2f}" for span in spans))
                print(*(f"{value:>{width}}" for value, width in zip(row, _WIDTHS)))


if __name__ == "__main__":
    main()
