"""Failures of attention kernels that users reported in public, each with its right answer: cases.yaml, as tests."""
