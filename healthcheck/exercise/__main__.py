"""Run exercises in the stack's Python and answer one event each."""

from __future__ import annotations

import sys

from healthcheck.exercise.runner import main

sys.exit(main(sys.argv[1:]))
