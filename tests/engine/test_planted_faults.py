"""Deliberately broken versions of the patch: the checks must catch every one, and say which did.

All faults are compiled into one server and chosen by an environment variable, so that only a few
files are compiled again. Nothing of this is part of the series.
"""

import shlex
import subprocess

import pytest
from conftest import engine_folder, required
from fakeprefix.engine.build import tool
from fakeprefix.engine.contract import Contract, check_clock, check_requests
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.process import running_server

pytestmark = pytest.mark.engine

SETTINGS = EngineSettings(2, 512, 256, "on", "f16", "f16", 4096)

SWITCH = """
#include <cstdlib>
#include <cstring>
static bool fault(const char * name) {
    const char * chosen = getenv("PLANTED_FAULT");
    return chosen && strcmp(chosen, name) == 0;
}
"""

# file, what stands there, what stands there instead
CHANGES = [
    (
        "src/llama-memory-hybrid.cpp",
        "const bool ok_attn = mem_attn->seq_fake_prefix(seq_id, n, params, info);",
        'const bool ok_attn = fault("recurrent only") || mem_attn->seq_fake_prefix(seq_id, n, params, info);',
    ),
    (
        "src/llama-memory-hybrid.cpp",
        "const bool ok_recr = mem_recr->seq_fake_prefix(seq_id, n, params, info);",
        'const bool ok_recr = fault("attention only") || mem_recr->seq_fake_prefix(seq_id, n, params, info);',
    ),
    ("src/llama-memory-recurrent.cpp", "cell.pos  = n - 1;", 'cell.pos  = n - 1 - fault("off by one");'),
    (
        "src/llama-fake-prefix.cpp",
        "size_t llama_fake_rows::write(const llama_cell_ranges & ranges) {",
        "size_t llama_fake_rows::write(const llama_cell_ranges & ranges) {\n"
        '    if (fault("content not written")) { return 1; }',
    ),
    (
        "tools/server/server-context.cpp",
        "slot.prompt.tokens.push_back(slot.task->tokens[i]);",
        'if (!fault("mirror not set")) { slot.prompt.tokens.push_back(slot.task->tokens[i]); }',
    ),
    (
        "tools/server/server-context.cpp",
        "slot.t_start_process_prompt = ggml_time_us();\n                        slot.t_start_generation = 0;",
        "slot.t_start_process_prompt = ggml_time_us() -\n"
        '    (fault("install inside the clock") ? (int64_t) (1e3*slot.t_install) : 0);\n'
        "                        slot.t_start_generation = 0;",
    ),
    (
        "tools/server/server-context.cpp",
        "if (prefix_source == SERVER_PREFIX_SOURCE_FAKE) {",
        'if (prefix_source == SERVER_PREFIX_SOURCE_FAKE && !fault("left reusable")) {',
    ),
    (
        "tools/server/server-task.cpp",
        "    if (!value.is_number_integer()) {",
        '    if (!value.is_number_integer() && fault("fails open")) { return; }\n    if (!value.is_number_integer()) {',
    ),
]

# fault -> checks that must notice it (others may as well)
CAUGHT_BY = {
    "attention only": "exact counts",
    "recurrent only": "exact counts",
    "off by one": "exact counts",
    "content not written": "identical logits",
    "mirror not set": "fresh slot",
    "install inside the clock": "outside of the prompt's clock",
    "fails open": "refused: text",
    "left reusable": "never reused",
}


@pytest.fixture(scope="module")
def faulty_server(tmp_path_factory):
    """The timing build's server, linked with the changed files in front."""
    engine, folder = required(engine_folder()), tmp_path_factory.mktemp("faults")
    build, tree = engine / "build-fast", engine / "source"
    objects = []
    for name in dict.fromkeys(file for file, _, _ in CHANGES):
        text = (tree / name).read_text()
        for file, old, new in CHANGES:
            if file == name:
                assert text.count(old) == 1, f"{file}: the fault's place has moved"
                text = text.replace(old, new)
        copy = folder / name.replace("/", "_")
        copy.write_text(SWITCH + text)
        objects.append(copy.with_suffix(".o"))
        includes = ("include", "ggml/include", "common", "vendor", "src", "tools/mtmd", "tools/server", ".")
        command = [
            "c++",
            "-std=c++17",
            "-O1",
            "-DNDEBUG",
            "-w",
            "-DGGML_USE_CPU",
            "-c",
            str(copy),
            "-o",
            str(objects[-1]),
        ]
        command += [f"-I{tree / include}" for include in includes] + [f"-I{build / 'tools' / 'server'}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    listed = subprocess.run(
        [tool("ninja"), "-C", str(build), "-t", "commands", "bin/llama-server"],
        check=True,
        capture_output=True,
        text=True,
    )
    link = listed.stdout.strip().splitlines()[-1]
    words = shlex.split(link.replace(": && ", "").replace(" && :", ""))
    words[words.index("-o") + 1] = str(folder / "llama-server")
    first_archive = next(i for i, word in enumerate(words) if word.endswith(".a"))
    words[first_archive:first_archive] = [*map(str, objects), "-Wl,--allow-multiple-definition"]
    done = subprocess.run(words, cwd=build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "llama-server"


def failed_checks(binary, model, log, fault):
    """Names of the checks that did not pass with this fault."""
    checks, environment = check_requests, {"PLANTED_FAULT": fault}
    if fault == "install inside the clock":
        checks, environment = check_clock, environment | {"LLAMA_FAKE_PREFIX_DELAY_MS": "3000"}
    with running_server(binary, SETTINGS, model, None, log, extra_environment=environment) as server:
        contract = Contract(server.client, None)
        # a server that crashes fails between two checks, too
        contract.check("the server lives", lambda: checks(contract))
    return [outcome.name for outcome in contract.outcomes if not outcome.passed]


def test_without_a_fault_everything_passes(faulty_server, tiny_model, tmp_path):
    assert failed_checks(faulty_server, tiny_model, tmp_path / "log", "none") == []


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_every_planted_fault_is_caught(faulty_server, tiny_model, tmp_path, fault):
    failed = failed_checks(faulty_server, tiny_model, tmp_path / "log", fault)
    print(f"{fault}: caught by {'; '.join(failed)}")
    assert any(CAUGHT_BY[fault] in name for name in failed), failed
