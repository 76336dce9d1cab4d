"""Is it right: one file per subject, each check a pure function Facts -> Verdict.

This file imports nothing, because the probe uses `checks.gpu` alone.
"""
