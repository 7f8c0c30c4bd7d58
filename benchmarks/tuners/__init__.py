"""The tuners that benchmarks/compare_tuners.py sets side by side, and how they are judged."""
