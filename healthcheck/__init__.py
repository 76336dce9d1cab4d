"""Dyno's self-test: verifies the GPU and the stack that it runs on, measures them, and reports.

Two environments share this package. Modules under `exercise`, `bench`, `measure` and `recipes` run in the
stack's Python and use only the standard library and the stack; everything else runs in Dyno's own.
`result`, `wire` and this file are the meeting point and use the standard library alone.
"""

__version__ = "0.1.0"
