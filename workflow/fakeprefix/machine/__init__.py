"""This machine: what it is, what it allows, which devices it has."""
