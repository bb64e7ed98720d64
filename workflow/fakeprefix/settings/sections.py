"""Every setting with its type, unit, bounds, default and meaning; the JSON schema and the manual are made of it."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic.fields import FieldInfo

from fakeprefix.arms import ARMS
from fakeprefix.engine_facts import COLUMN_WIDTH

# more than any model has
ALL_LAYERS = 999

ArmName = Literal["baseline", "fake_prefix", "state_restore", "cached_prefix"]
Fill = Literal["zero", "random", "tile"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"]
Preset = Literal[
    "tiny-hybrid",
    "tiny-dense-hybrid",
    "tiny-attention",
    "tiny-attention-qk-norm",
    "tiny-recurrent",
    "small-hybrid",
    "holo3-35b-a3b",
    "holo3-35b-a3b-q4",
]
TraceFormat = Literal[
    "auto", "steps", "opencua", "openai-chat", "swe-agent", "mini-swe-agent", "kv-cache-tester", "mooncake"
]


def setting(default: Any, description: str, unit: str = "", **bounds: Any) -> Any:
    """A field; `unit` goes into the schema and the manual."""
    return Field(default, description=description, json_schema_extra={"unit": unit} if unit else None, **bounds)


class Section(BaseModel):
    """Settings that belong together: unknown keys are refused, values cannot be changed.

    Attributes:
        renamed: earlier names of keys in this section, and where they are now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    renamed: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_strings(cls, values: Any) -> Any:
        """Values of the command line arrive as strings; read them as YAML where no text is wanted."""
        if isinstance(values, str):
            values = _as_yaml(values)
        if not isinstance(values, dict):
            return values
        return {
            name: value if _wants_text(cls.model_fields.get(name)) else _read(value) for name, value in values.items()
        }

    def as_params(self) -> dict[str, Any]:
        """Plain values, for a rule's ``params`` and for files."""
        return self.model_dump(mode="json")

    @classmethod
    def of_params(cls, params: dict[str, Any]) -> Self:
        """The section that `as_params` was made of.

        Raises:
            pydantic.ValidationError: it was made of something else.
        """
        return cls.model_validate(params)


def _wants_text(field: FieldInfo | None) -> bool:
    """True for text, and for a choice between words: ``on`` is a word there and no truth value."""
    if field is None:
        return True
    kinds = get_args(field.annotation)
    return field.annotation is str or (bool(kinds) and all(isinstance(kind, str) for kind in kinds))


def _as_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _read(value: Any) -> Any:
    if isinstance(value, str):
        return _as_yaml(value)
    return [_read(item) for item in value] if isinstance(value, list) else value


Count = Annotated[StrictInt, Field(ge=0)]
Positive = Annotated[StrictInt, Field(ge=1)]


class EngineSource(Section):
    """Where the engine's source comes from."""

    kind: Literal["sdist", "git", "path"] = setting(
        "sdist",
        "`sdist`: a source distribution from the Python package index. `git`: clone a repository. `path`: copy a "
        "checkout that is already here; it is never modified.",
    )
    package: str = setting(
        "llama-cpp-python==0.3.27",
        "For `sdist` - the distribution that vendors the engine, as `name==version`.",
        pattern=r"^[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+$",
    )
    sha256: str = setting(
        "b9eb9957de3776c2b1ae2beeccb52d5603e4e84afd94ae0d46bf96e04cbead6a",
        "For `sdist` - the digest of the file; anything else is refused.",
        pattern=r"^[0-9a-f]{64}$",
    )
    url: str = setting("https://github.com/ggml-org/llama.cpp", "For `git` - address of the repository.")
    commit: str = setting(
        "da87e9b612592ccd2a2e783eff631346459b9de0",
        "For `git` - the commit, in full.",
        pattern=r"^[0-9a-f]{40}$",
    )
    path: str = setting("", "For `path` - a checkout of the engine.")


class EngineBuild(Section):
    """How the engine is compiled."""

    native: StrictBool = setting(
        True, "Compile for this machine's CPU. Without it, timings are those of a generic CPU."
    )
    backend: Literal["cpu", "cuda", "vulkan"] = setting(
        "cpu",
        "What computes: `cpu`; `cuda` or `vulkan` on a GPU, which must be there, with nvcc or glslc to compile for it.",
    )
    jobs: Count = setting(0, "Parallel compile jobs, 0 for one a core.")
    ccache: StrictBool = setting(True, "Use `ccache` if it is installed.")


class EngineRun(Section):
    """How the engine runs, given alike to the server and to the benchmark."""

    threads: Count = setting(0, "Threads, 0 for one a physical core that affinity and quota leave.")
    n_batch: StrictInt = setting(2048, "Logical batch size.", "tokens", ge=32)
    n_ubatch: StrictInt = setting(512, "Physical batch size (ubatch).", "tokens", ge=32)
    flash_attn: Literal["on", "off", "auto"] = setting("on", "Flash attention.")
    cache_type_k: CacheType = setting("f16", "Type of the K cells.")
    cache_type_v: CacheType = setting("f16", "Type of the V cells.")
    n_gpu_layers: StrictInt = setting(
        -1, "Layers kept on the GPU; -1 for all with a backend that has one, else none.", ge=-1
    )


class Engine(Section):
    """The inference engine: where it comes from, how it is built and run."""

    source: EngineSource = EngineSource()
    series: str = setting(
        "465b1f0e7", "Folder below `patches/` with the patch series for this source.", pattern=r"^[0-9a-f]{7,40}$"
    )
    build: EngineBuild = EngineBuild()
    run: EngineRun = EngineRun()


class Model(Section):
    """The model."""

    kind: Literal["synthetic", "gguf"] = setting(
        "synthetic", "`synthetic`: generate one with random weights. `gguf`: use your files."
    )
    preset: Preset = setting("tiny-hybrid", "For `synthetic` - the shape.")
    shape: dict[str, StrictInt] = setting(
        {},
        "For `synthetic` - other dimensions than the preset's, for example `{n_layer: 12, n_expert: 16}`; a wrong "
        "name is answered with the known ones.",
    )
    seed: Count = setting(1, "For `synthetic` - same seed, same weights.")
    path: str = setting("", "For `gguf` - the model, or the first of its parts.")
    mmproj: str = setting("", "For `gguf` - the projector for images, empty for a model without.")


class Eviction(Section):
    """An agent that forgets old screenshots, measured beside the one that keeps everything."""

    keep_last_images: Count = setting(0, "Images that a prompt keeps; 0 for no such agent.")
    placeholder: str = setting(
        "[screenshot removed]", "Text in place of an older image, where the trace has the conversations."
    )
    placeholder_tokens: Positive = setting(4, "Its length where the trace has counts only.", "tokens")


class Grid(Section):
    """For `trace.source: grid`, the two lists."""

    prefix_tokens: tuple[Count, ...] = setting((1024, 4096, 16384), "Prefix lengths.", "tokens")
    new_tokens: tuple[Positive, ...] = setting((128, 512), "Numbers of new tokens.", "tokens")


class Trace(Section):
    """The agent's steps."""

    source: Literal["desktop", "grid", "file"] = setting(
        "desktop",
        "`desktop`: a bundled agent with drawn screenshots. `grid`: every pair of two lists. `file`: your steps.",
    )
    path: str = setting("", "For `file` - a file, or a folder with files of one format.")
    seed: Count = setting(1, "For `desktop` - same seed, same steps.")
    format: TraceFormat = setting(
        "auto",
        "For `file` - how the steps are written; `auto` takes the only one that fits and refuses if several do.",
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "For `file` - a record that cannot be used: `stop` ends with the reason, `skip` counts it and goes on."
    )
    eviction: Eviction = Eviction()
    on_hole: Literal["reject", "recompute"] = setting(
        "reject", "A history with a gap: `reject` refuses the step, `recompute` prefills everything behind the gap."
    )
    grid: Grid = Grid()


class Plan(Section):
    """Which steps are measured, and up to where a prefix is really computed."""

    bucket_width: StrictInt = setting(
        4096,
        "Steps whose prefix and new tokens end within the same so many tokens are reported together; a multiple of "
        f"{COLUMN_WIDTH}.",
        "tokens",
        ge=COLUMN_WIDTH,
    )
    max_steps_per_bucket: Positive = setting(
        2, "Steps of a bucket that are measured; the others are estimated from them."
    )
    max_new_tokens: Count = setting(
        0,
        "Steps that add more are not measured directly but estimated from the others; 0 for no bound.",
        "tokens",
    )
    real_prefix_up_to: Count = setting(
        0,
        "Longest prefix that is really computed, by whatever arm and by the benchmark; over longer ones only a "
        "fabricated prefix is measured. 0 for no bound. Lengths for fidelity are given on their own.",
        "tokens",
    )


class Repetitions(Section):
    """Repetitions of every measured step."""

    baseline: Positive = setting(3, "Whole prompts.")
    fake_prefix: Positive = setting(5, "Over a fabricated prefix.")
    state_restore: Positive = setting(5, "Over a prefix that was computed once, kept and restored.")
    cached_prefix: Positive = setting(
        3, "Over a prefix in the engine's own prompt cache; each needs a prefill of the prefix."
    )
    depth_rate: Count = setting(
        3, "Of the independent benchmark; 0 leaves it out, and there is no estimate to compare with."
    )

    def of(self, name: str) -> int:
        """Of an arm, or of the benchmark (``depth_rate``)."""
        count: int = getattr(self, name)
        return count


class FidelityTurns(Section):
    """Every fill, a restored state and the engine's own cache take turns in one server."""

    prefix_tokens: tuple[Annotated[StrictInt, Field(ge=COLUMN_WIDTH)], ...] = setting(
        (1024, 4096), "Prefix lengths at which they are compared; none skips it.", "tokens"
    )
    new_tokens: Positive = setting(256, "New tokens of every turn.", "tokens")
    fills: tuple[Fill, ...] = setting(
        ("zero", "random", "tile"), "Contents of the cells that are compared.", min_length=1
    )
    cached_up_to: Count = setting(
        1024,
        "Longest prefix at which the engine's own cache takes part; each of its turns prefills the prefix.",
        "tokens",
    )
    min_rounds: StrictInt = setting(
        10, "Rounds in any case; in each every arm has one turn, a restored state two.", ge=10
    )
    max_rounds: StrictInt = setting(20, "Rounds at most.", ge=10)
    stop_width: StrictFloat = setting(
        0.02,
        "Rounds are added until the interval of every fill's ratio is narrower than this, as a share of the ratio.",
        gt=0,
        lt=1,
    )
    budget_s: StrictFloat = setting(30.0, "Time for a length after which no more rounds are added.", "seconds", gt=0)


class ProbeRequest(Section):
    """A fixed request that every job repeats, so that drift between jobs is seen."""

    prefix_tokens: StrictInt = setting(1024, "Fabricated prefix of the probe.", "tokens", ge=COLUMN_WIDTH)
    new_tokens: Positive = setting(128, "New tokens of the probe.", "tokens")

    @property
    def total_tokens(self) -> int:
        return self.prefix_tokens + self.new_tokens


class Measure(Section):
    """How it is measured."""

    renamed: ClassVar[dict[str, str]] = {"real_prefix_up_to": "plan.real_prefix_up_to"}

    arms: tuple[ArmName, ...] = setting(
        ("baseline", "fake_prefix"),
        "Ways of making the prefix present that are measured for every bucket.",
        min_length=1,
    )
    fill: Fill = setting("tile", "What the fabricated cells contain.")
    repetitions: Repetitions = Repetitions()
    fidelity: FidelityTurns = FidelityTurns()
    probe: ProbeRequest = ProbeRequest()
    decode_tokens: Positive = setting(
        1,
        "Tokens decoded after each prefill, the first of which is part of the prefill; with more than one, decode is "
        "reported beside prefill.",
        "tokens",
    )
    timeout_s: StrictFloat = setting(7200.0, "Longest time for one request.", "seconds", gt=0)

    @property
    def arms_present(self) -> tuple[str, ...]:
        """The arms in the order of `fakeprefix.arms.ARMS`, whatever the order in the settings."""
        return tuple(name for name in ARMS if name in self.arms)


class Analysis(Section):
    """How results are computed from the raw rows; changing it never measures again."""

    confidence: StrictFloat = setting(0.95, "Of all intervals.", gt=0.5, lt=1)
    bootstrap: StrictInt = setting(2000, "Resamples for an interval.", ge=200)
    seed: Count = setting(1, "Of the resampling.")
    agreement_margin: StrictFloat = setting(
        0.2, "Largest relative difference between measurement and estimate that counts as agreement.", gt=0
    )
    equivalence_margin: StrictFloat = setting(
        0.02,
        "Largest relative difference between a fabricated and a real prefix that counts as none.",
        gt=0,
        lt=1,
    )
    max_drift: StrictFloat = setting(
        0.25,
        "Largest relative drift of the probes within a job, and between compared jobs; beyond it no verdict is given.",
        gt=0,
    )


class Settings(Section):
    """What is measured, on what and how often."""

    run_name: str = setting(
        "default", "Last part of the name of a new run folder.", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$"
    )
    run: str = setting(
        "",
        "Empty: continue the run that measures the same, or start one. `new`: start one anyway. Otherwise the name of "
        "a run folder to go back to.",
        pattern=r"^[A-Za-z0-9._-]*$",
    )
    node_type: str = setting(
        "",
        "For a run on a cluster - the kind of node that is measured; names the run folder and the build, and makes "
        "one of each for every kind. Empty: this machine.",
        pattern=r"^[a-z0-9-]*$",
    )
    engine: Engine = Engine()
    model: Model = Model()
    trace: Trace = Trace()
    plan: Plan = Plan()
    measure: Measure = Measure()
    analysis: Analysis = Analysis()
