"""flashgen: tunes, proves and vendors FlashAttention kernels written in Triton."""

__version__ = "0.1.0"
