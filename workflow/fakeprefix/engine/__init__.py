"""The engine: fetching its source, patching, building, checking."""
