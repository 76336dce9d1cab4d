"""The winning forms of the scenarios, as functions to use in a program of one's own.

    from healthcheck.recipes import Branches, cuda_defaults, graphed, prefetch_to_device

Importing them needs neither torch nor a GPU; calling them needs torch.
"""

from healthcheck.recipes.branches import Branches
from healthcheck.recipes.defaults import cuda_defaults
from healthcheck.recipes.graphs import graphed
from healthcheck.recipes.prefetch import prefetch_to_device

__all__ = ["Branches", "cuda_defaults", "graphed", "prefetch_to_device"]
