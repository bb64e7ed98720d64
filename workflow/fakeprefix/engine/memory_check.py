"""The engine's memory against its model: generated operations through the driver program."""

import contextlib
import json
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fakeprefix.arms import FILLS
from fakeprefix.engine.memory_model import N_PER_UBATCH, EngineMemory
from fakeprefix.errors import EngineError
from fakeprefix.server.process import SANITIZER_OPTIONS

NAMES = ("a", "b", "c")

Raw = tuple[int, int, int, int]


@dataclass(frozen=True)
class Setup:
    """A memory to try: the model that has it, and how it is divided."""

    model: Path
    n_ctx: int
    n_seq: int
    unified: bool

    @property
    def name(self) -> str:
        return f"{self.model.parent.name}, {self.n_seq} sequences, {'unified' if self.unified else 'split'}"


class Driver:
    """The driver program, one command at a time.

    Raises (when used):
        EngineError: the program ended; the message has what it said last.
    """

    def __init__(self, binary: Path, setup: Setup) -> None:
        arguments = [str(binary), str(setup.model), str(setup.n_ctx), str(setup.n_seq), str(int(setup.unified))]
        # a file and not a pipe: the engine explains every refusal, and nobody reads that meanwhile
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**SANITIZER_OPTIONS, "OMP_NUM_THREADS": "1"},
        )
        self.header = self._read("start")

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        finally:
            self._process.kill()
            self._process.wait()
            self._said.close()

    def memory(self, setup: Setup) -> EngineMemory:
        """A model of the memory that the program has set up."""
        header = self.header
        return EngineMemory(header["memory"], header["n_ctx_seq"], setup.n_seq, setup.unified, header["mrope"])

    def run(self, command: str) -> dict[str, Any]:
        """The answer to one command."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        return self._read(command)

    def _read(self, command: str) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(timeout=30)
            self._said.seek(0)
            said = self._said.read()[-2000:]
            raise EngineError(f"the memory driver ended with status {self._process.returncode} at {command!r}:\n{said}")
        return json.loads(line)


def command_from(raw: Raw, memory: EngineMemory) -> str:
    """A command that the engine defines, from four numbers and the state of the memory.

    Operations that abort the engine by design are not issued: shifts with M-RoPE, positions that
    become negative, copies onto a sequence that has something.
    """
    kind, which, x, y = raw
    seq = which % memory.n_seq
    last = memory.last(seq)
    kind %= 20
    if kind < 6:
        gap = (0, 0, 0, 0, 1, -1, 3)[x % 7]
        position = max(0, last + 1 + gap) if last >= 0 or x % 3 else 17
        return f"decode {seq} {position} {1 + y % min(N_PER_UBATCH, 24)}"
    if kind == 6 and memory.mrope:
        return f"image {seq} {max(0, last + (x % 3))} {1 + x % 5} {1 + y % 4}"
    if kind in (7, 8, 9):
        p0 = (-1, 0, x % (last + 3), x % (last + 3))[x % 4] if last >= 0 else x % 3
        p1 = (-1, p0 + 1 + y % 9, last + 1)[y % 3]
        return f"rm {seq} {p0} {p1}"
    if kind in (10, 11):
        target = (seq + 1 + x % max(1, memory.n_seq - 1)) % memory.n_seq
        if target != seq and memory.is_empty(target):
            return f"cp {seq} {target}"
        return f"rm {target} -1 -1"
    if kind == 12:
        return f"keep {seq}"
    if kind == 13 and not memory.mrope:
        lowest = min((cell.position for cell in memory.cells_of(seq)), default=0) if memory.has_attention else last
        return f"add {seq} {max(-max(lowest, 0), x % 9 - 4)}"
    if kind in (14, 15, 16):
        n = (x % 40, memory.capacity - y % 3, memory.capacity + 1, 1, 0, -1, x % memory.capacity)[y % 7]
        return f"{'dry' if kind == 16 else 'fake'} {seq} {n} {FILLS[x % 3]}"
    if kind == 17:
        return f"tile {seq}"
    if kind == 18:
        return f"save {seq} {NAMES[x % 3]}"
    if kind == 19 and NAMES[x % 3] in memory.saved:
        return f"load {seq} {NAMES[x % 3]}"
    return "clear" if y % 8 == 0 else f"decode {seq} {last + 1} 1"


def disagreement(command: str, expected_ok: bool, memory: EngineMemory, answer: dict[str, Any]) -> str | None:
    """What the engine says otherwise than the model after a command."""
    if answer["ok"] != expected_ok:
        return f"{command}: engine {'accepts' if answer['ok'] else 'refuses'}, model does not"
    for seq, seen in enumerate(answer["seqs"]):
        expected = asdict(memory.view(seq))
        if not seen["known"]:
            return f"{command}: sequence {seq} is not reported"
        for key, value in expected.items():
            if seen[key] != value:
                return f"{command}: sequence {seq}: {key} is {seen[key]} in the engine, {value} in the model"
    return None


def compare(driver: Driver, memory: EngineMemory, raws: Iterable[Raw], counts: Counter[str]) -> None:
    """Run operations in both, starting from a cleared memory.

    Raises:
        EngineError: they disagree; the message has the operations that led there.
    """
    driver.run("clear")
    memory.clear()
    done: list[str] = ["clear"]
    for raw in raws:
        command = command_from(raw, memory)
        done.append(command)
        ok = memory.apply(command)
        answer = driver.run(command)
        counts[f"{command.split()[0]} {'accepted' if ok else 'refused'}"] += 1
        if problem := disagreement(command, ok, memory, answer):
            raise EngineError(f"{problem}\nafter: {'; '.join(done[-30:])}")


def try_operations(binary: Path, setups: Iterable[Setup], n_operations: int, seed: int) -> dict[str, dict[str, int]]:
    """Random operations on every setup.

    Args:
        n_operations: for each setup.

    Returns:
        How often each operation was accepted and refused, by setup.

    Raises:
        EngineError: engine and model disagree, or the program died.
    """
    tried = {}
    for setup in setups:
        draw = random.Random(f"{seed}/{setup.name}")
        counts: Counter[str] = Counter()
        with Driver(binary, setup) as driver:
            memory = driver.memory(setup)
            for _ in range(max(1, n_operations // 50)):
                raws = [tuple(draw.randrange(1000) for _ in range(4)) for _ in range(50)]
                compare(driver, memory, raws, counts)
        tried[setup.name] = dict(sorted(counts.items()))
    return tried
