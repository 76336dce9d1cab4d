"""Dyno's builder: plans and builds the image. Standard library alone, so that a bare host can run it."""
