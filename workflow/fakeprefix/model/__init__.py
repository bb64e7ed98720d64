"""Models: reading GGUF files, shapes, synthetic weights, memory and time estimates."""
