"""The patched server as seen from outside: its process, its requests, prompts of exact length."""
