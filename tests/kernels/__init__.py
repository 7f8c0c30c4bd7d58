"""Exactness and contract of the emitted module, through its public functions."""
