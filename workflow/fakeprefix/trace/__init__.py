"""Traces: step records, built-in sources, logical runs."""
