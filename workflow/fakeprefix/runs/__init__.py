"""Run folders: which experiment they hold, when they begin, how they are sealed, packed and described."""
