"""Benchmarks of speed and bytes: ``python -m kvcomp_eval.bench decode`` and ``... prefill``."""
