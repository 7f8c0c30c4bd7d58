"""Imported by the process that compilers are forked from: what takes them seconds, once for all of them.

Under its interpreter triton compiles nothing, and it looks for that as it is imported.
"""

import os

os.environ.pop("TRITON_INTERPRET", None)

import torch  # noqa: F401
import triton.compiler  # noqa: F401

import flashgen.compiler.crosscompile  # noqa: F401
