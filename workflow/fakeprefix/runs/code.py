"""Which code makes a result: a script and every module of this package that it imports, however indirectly."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp

from fakeprefix.storage import sha256_files

PACKAGE = "fakeprefix"


@cache
def _graph(root: Path) -> grimp.ImportGraph:
    # no cache on the disk: reading all modules takes some 20 ms
    return grimp.build_graph(PACKAGE, cache_dir=None)


def imported_modules(file: Path) -> set[str]:
    """Modules of this package that a Python file imports itself.

    Raises:
        SyntaxError: the file is not Python.
    """
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import name` imports the package, and the module of that name where there is one
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] == PACKAGE}


def code_files(scripts: Iterable[Path], source: Path) -> list[Path]:
    """The scripts and the files of all modules that they import, directly or through others, sorted.

    Args:
        scripts: Python files outside of the package.
        source: folder that holds the package's folder.
    """
    graph = _graph(source)
    scripts = list(scripts)
    modules: set[str] = set()
    for script in scripts:
        for name in imported_modules(script) & graph.modules:
            modules |= {name, *graph.find_upstream_modules(name)}
    # importing a module runs the packages that it lies in
    modules |= {name.rsplit(".", level)[0] for name in modules for level in range(1, name.count(".") + 1)}
    return sorted({*scripts, *(_file_of(name, source) for name in modules)})


def code_sha256(scripts: Iterable[Path], source: Path) -> str:
    """Hex digest over names and contents of `code_files`; comments and blank space count too.

    Args:
        scripts: Python files below the folder that holds `source`.
        source: folder that holds the package's folder.
    """
    return sha256_files(code_files(scripts, source), source)


def _file_of(module: str, source: Path) -> Path:
    path = source.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
