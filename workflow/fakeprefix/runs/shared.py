"""Where things lie that are made once and shared by runs: generated models, verdicts of contract tests.

Each has a digest of the code that makes it in its path. A parameter of the rule would not do: if such a rule
is run again while its output exists, Snakemake takes everything behind an ``ancient()`` input of it for done,
in a run folder that is still empty too.
"""

from pathlib import Path

from fakeprefix.runs.code import code_sha256

DIGITS = 12


def models_folder(root: Path) -> Path:
    """Folder of the generated models that this code makes.

    Args:
        root: the checkout.
    """
    workflow = root / "workflow"
    digest = code_sha256([workflow / "scripts" / "synthetic_model.py"], workflow)
    return root / "resources" / "model" / digest[:DIGITS]


def contract_file(engine: Path, root: Path) -> Path:
    """The verdict of this code's contract tests on an engine.

    Args:
        engine: folder of the engine.
        root: the checkout.
    """
    workflow = root / "workflow"
    return engine / f"contract-{code_sha256([workflow / 'scripts' / 'contract.py'], workflow)[:DIGITS]}.json"
