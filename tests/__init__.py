"""Tests mirror flashgen/. This file makes `tests` a package, so that tests/cases and tests/kernels share helpers."""
