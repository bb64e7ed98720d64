"""Readers of traces as people have them; each yields steps, or conversations that become steps."""
