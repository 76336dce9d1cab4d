"""The optimised form of each scenario: `from healthcheck.recipes import prefetch_to_device`.

Needs torch when called, not when imported.
"""

from healthcheck.recipes.prefetch import prefetch_to_device

__all__ = ["prefetch_to_device"]
