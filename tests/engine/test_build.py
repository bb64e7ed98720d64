import os
import subprocess
import sys

import pytest
from fakeprefix.engine.build import cmake_flags, has_asserts, run_logged
from fakeprefix.errors import EngineError

PROGRAM = "#include <cassert>\nint main(int n, char **) { assert(n > 0); return 0; }\n"


@pytest.mark.parametrize(
    ("flags", "asserts"),
    [(["-O1"], True), (["-O2", "-g", "-DNDEBUG"], False)],
)
def test_asserts_are_proven_from_the_binary(tmp_path, flags, asserts):
    source, binary = tmp_path / "a.cpp", tmp_path / "a"
    source.write_text(PROGRAM)
    subprocess.run(["c++", *flags, str(source), "-o", str(binary)], check=True)
    assert has_asserts(binary) is asserts


def test_a_file_that_is_no_binary_is_an_error(tmp_path):
    (tmp_path / "x").write_text("text")
    with pytest.raises(EngineError):
        has_asserts(tmp_path / "x")


def test_no_flag_of_the_checked_build_defines_ndebug():
    flags = cmake_flags("checked", native=True)
    assert flags["CMAKE_BUILD_TYPE"] == "Debug"
    assert not any("NDEBUG" in value for value in flags.values())
    assert cmake_flags("fast", native=False)["GGML_NATIVE"] == "OFF"


def test_a_failing_compile_shows_its_last_lines_and_names_the_log(tmp_path):
    code = "print('[1/2] a'); print('b.cpp:3: error: no'); raise SystemExit(2)"
    with pytest.raises(EngineError) as error:
        run_logged([sys.executable, "-c", code], tmp_path / "build.log", dict(os.environ), stage="compiling")
    assert "b.cpp:3: error: no" in str(error.value)
    assert str(tmp_path / "build.log") in str(error.value)
    assert "[1/2] a" in (tmp_path / "build.log").read_text()
