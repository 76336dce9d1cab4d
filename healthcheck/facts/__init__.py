"""What is there: frozen data, gathered without judging it and without importing the stack.

Every field may be None, which means *unknown*; 0, False and "" are findings. This file imports nothing,
because the probe uses `facts.gpu` alone and runs every few seconds.
"""
