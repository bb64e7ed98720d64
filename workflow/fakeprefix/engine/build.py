"""Compile the patched engine: a fast build for timing, and a checked one with real asserts."""

import logging
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakeprefix.engine.source import tree_diff
from fakeprefix.errors import EngineError
from fakeprefix.machine.cpu import this_cpu
from fakeprefix.machine.devices import BACKEND_FLAGS, CPU, KERNEL_COMPILER, require_device
from fakeprefix.progress import Progress
from fakeprefix.storage import read_json, sha256_file, write_json, write_text

log = logging.getLogger(__name__)

TARGETS = {"fast": ("llama-server", "llama-bench"), "checked": ("llama-server",)}
NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
LAST_LINES = 20

COMMON_FLAGS = {
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    # with the defaults the build downloads a web page and rewrites a tracked file
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "GGML_CCACHE": "OFF",
}

FLAVOUR_FLAGS = {
    "fast": {
        "CMAKE_BUILD_TYPE": "Release",
        "FAKEPREFIX_GLUE_OPTIONS": "-O1",
        "FAKEPREFIX_TIMED_OPTIONS": "-O3",
    },
    "checked": {
        # every other build type defines NDEBUG, RelWithDebInfo too, and with it all asserts are gone
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_C_FLAGS_DEBUG": "-O1 -g1",
        "CMAKE_CXX_FLAGS_DEBUG": "-O1 -g1",
        "CMAKE_EXE_LINKER_FLAGS": "-fsanitize=address,undefined",
        "LLAMA_SANITIZE_ADDRESS": "ON",
        "FAKEPREFIX_SANITIZE_UNDEFINED": "ON",
        "FAKEPREFIX_CORE_OPTIONS": "-O1;-g1;-fsanitize=address,undefined",
        "FAKEPREFIX_MODEL_OPTIONS": "-O0;-g0;-fno-sanitize=all",
        "FAKEPREFIX_GLUE_OPTIONS": "-O0;-g0",
        "FAKEPREFIX_TIMED_OPTIONS": "-O1;-g1",
    },
}


def cmake_flags(flavour: str, native: bool, backend: str = CPU) -> dict[str, str]:
    """The CMake variables of a flavour, ``fast`` or ``checked``, that computes on a backend."""
    native_flag = {"GGML_NATIVE": "ON" if native else "OFF"}
    return COMMON_FLAGS | FLAVOUR_FLAGS[flavour] | native_flag | BACKEND_FLAGS[backend]


def settings_of_flavour(flavour: str, build: Mapping[str, Any]) -> dict[str, Any]:
    """Section ``engine.build`` as a flavour takes it: the checked one computes on the CPU whatever the fast one does.

    Asserts and sanitizers look at the memory's bookkeeping, which is on the host.
    """
    return {**build, "backend": CPU} if flavour == "checked" else dict(build)


def build_engine(
    flavour: str,
    tree: Path,
    build: Path,
    tests: Path,
    source_manifest: Path,
    manifest: Path,
    *,
    native: bool,
    backend: str,
    jobs: int,
    ccache: bool,
) -> None:
    """Configure and compile one flavour, check the binary, and write its manifest last.

    Args:
        flavour: ``fast`` or ``checked``.
        tree: the patched source.
        build: folder to build in.
        tests: folder with the series' C++ test programs; they are linked with the checked build.
        source_manifest: from `prepare_source`.
        manifest: written when the binaries are complete.
        native: compile for this machine's CPU.
        backend: ``cpu``, ``cuda`` or ``vulkan``.
        jobs: parallel jobs, 0 for one a core.
        ccache: use ccache where it is installed.

    Raises:
        EngineError: compiling failed (the message has the last lines), or asserts are not what the
            flavour promises, or there is no device for the backend.
    """
    devices = require_device(backend)
    flags = cmake_flags(flavour, native, backend)
    environment = build_environment(tree.parent)
    if ccache and shutil.which("ccache"):
        flags |= {"CMAKE_C_COMPILER_LAUNCHER": "ccache", "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"}
    configure = [
        tool("cmake"),
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        "-S",
        str(tree),
        "-B",
        str(build),
    ]
    configure += [f"-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES={Path(__file__).with_name('flags.cmake')}"]
    configure += [f"-D{name}={value}" for name, value in flags.items()]
    compile_ = [tool("ninja"), "-C", str(build), "-j", str(jobs or len(os.sched_getaffinity(0))), *TARGETS[flavour]]

    log.info("configuring the %s build", flavour)
    run_logged(configure, build.parent / f"{build.name}.log", environment, stage="")
    run_logged(compile_, build.parent / f"{build.name}.log", environment, stage=f"compiling ({flavour})", append=True)

    binaries = {name: build / "bin" / name for name in TARGETS[flavour]}
    if flavour == "checked":
        for source in sorted(tests.glob("*.cpp")):
            binaries[source.stem] = build / "bin" / source.stem
            command = test_program_command(source, tree, build, binaries[source.stem])
            run_logged(command, build.parent / f"{build.name}.log", environment, stage="", append=True)
    asserts = has_asserts(binaries["llama-server"])
    if asserts != (flavour == "checked"):
        state = "has no asserts" if flavour == "checked" else "has asserts"
        raise EngineError(
            f"the {flavour} build {state}: llama-server does {'' if asserts else 'not '}import __assert_fail"
        )
    write_json(
        manifest,
        read_json(source_manifest)
        | {
            "flavour": flavour,
            "flags": flags,
            "compiler": first_line(["c++", "--version"]),
            "cmake": first_line([tool("cmake"), "--version"]),
            "asserts": asserts,
            # native code may not run, or run slower, anywhere else
            "compiled_for": this_cpu() if native else None,
            "backend": backend,
            "devices": devices,
            "kernel_compiler": first_line([KERNEL_COMPILER[backend], "--version"]) if backend != CPU else None,
            "binaries": {
                name: {"sha256": sha256_file(path), "bytes": path.stat().st_size} for name, path in binaries.items()
            },
        },
    )


def test_program_command(source: Path, tree: Path, build: Path, binary: Path) -> list[str]:
    """Compile and link one test program with the checked build's library, under the same sanitizers."""
    libraries = ("src/libllama.a", *(f"ggml/src/lib{name}.a" for name in ("ggml", "ggml-cpu", "ggml-base")))
    return [
        *("c++", "-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined"),
        *(f"-I{tree / folder}" for folder in ("include", "ggml/include")),
        *(str(source), "-o", str(binary)),
        *(str(build / library) for library in libraries),
        *("-fopenmp", "-lpthread", "-ldl"),
    ]


def build_environment(base: Path) -> dict[str, str]:
    """Environment of the compiler; with it ccache finds what another folder has compiled."""
    return os.environ | {"CCACHE_BASEDIR": str(base.resolve()), "CCACHE_NOHASHDIR": "1"}


def tool(name: str) -> str:
    """A program of this Python environment, or of the PATH.

    Raises:
        EngineError: there is neither.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if not found:
        raise EngineError(f"{name} is missing; run make reproduce once, it installs it")
    return found


def run_logged(
    command: list[str], log_path: Path, environment: dict[str, str], stage: str, append: bool = False
) -> None:
    """Run a command with its output in `log_path`, reporting ``[n/m]`` as progress of `stage`.

    Raises:
        EngineError: it failed; the message has its last lines and names the log.
    """
    tail: deque[str] = deque(maxlen=LAST_LINES)
    progress = None
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("a" if append else "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        )
        try:
            for line in process.stdout:
                output.write(line)
                tail.append(line)
                if stage and (match := NINJA_STEP.match(line)):
                    done, total = int(match[1]), int(match[2])
                    progress = progress or Progress(stage, total)
                    progress.advance(done - progress.done, f"{done}/{total}")
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status:
        raise EngineError(
            f"{Path(command[0]).name} failed with status {status}, see {log_path}:\n{''.join(tail)}".rstrip()
        )


def has_asserts(binary: Path) -> bool:
    """True if ``assert()`` is compiled in: only then the binary imports ``__assert_fail``."""
    done = subprocess.run(["nm", "--dynamic", "--undefined-only", str(binary)], capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"nm cannot read {binary}: {done.stderr.strip()}")
    return "__assert_fail" in done.stdout


def first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.splitlines()[0] if done.stdout else "unknown"


def copy_provenance(tree: Path, manifest: Path, folder: Path) -> None:
    """Put the manifest of the timing build and the exact diff of its tree into a run folder."""
    write_json(folder / "manifest.json", read_json(manifest))
    write_text(folder / "git_diff.patch", tree_diff(tree))
