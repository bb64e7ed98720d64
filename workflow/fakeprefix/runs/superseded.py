"""Rows of an earlier attempt are kept. Apart from the run folder, so that measuring does not depend on its code."""

from datetime import datetime
from pathlib import Path


def supersede(folder: Path, file: Path) -> Path | None:
    """Move an earlier attempt's rows to ``raw/superseded/``; None if there were none."""
    if not file.is_file():
        return None
    stamp = datetime.fromtimestamp(file.stat().st_mtime).strftime("%Y%m%dT%H%M%S")
    relative = file.relative_to(folder / "raw")
    target = folder / "raw" / "superseded" / relative.parent / f"{file.name.lstrip('.').split('.')[0]}.{stamp}.jsonl"
    number = 1
    while target.exists():
        target = target.with_name(f"{target.name.split('.')[0]}.{stamp}-{number}.jsonl")
        number += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    return file.rename(target)
