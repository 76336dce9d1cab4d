"""The measuring core: timers and statistics. Importable without torch.

METHOD_VERSION names the way of measuring. Results of different versions are not comparable, so it goes up
with every change that moves a number.
"""

METHOD_VERSION = 2
