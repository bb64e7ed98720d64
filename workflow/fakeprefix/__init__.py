"""Measure an agent step's prefill over a prefix that was never computed.

Imports go one way: ``measure`` and ``engine.check`` use ``server``; ``measure`` uses ``plan``, which
uses ``trace``; ``analysis`` reads files only. Nothing imports a stage above it.
"""

__version__ = "0.1.0"
