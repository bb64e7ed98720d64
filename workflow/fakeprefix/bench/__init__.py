"""What `make bench` measures: side by side in one run, as ratios. Never part of a run's results."""
