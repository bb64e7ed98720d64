"""Measuring: one timing job at a time, every repetition kept, nothing computed."""
