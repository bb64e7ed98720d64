"""What the patched server answers, as far as it is read."""

from typing import Any, NotRequired, TypedDict


class Resolved(TypedDict):
    """What the context settled on, from ``/props``.

    `memory_type` is ``attention``, ``recurrent`` or ``hybrid``; sizes are in tokens.
    """

    memory_type: str
    n_rs_seq: int
    flash_attn: bool
    v_trans: bool
    fused_gdn_ar: bool
    fused_gdn_ch: bool
    kv_unified: bool
    offload_kqv: bool
    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    cache_type_k: str
    cache_type_v: str


class Modalities(TypedDict):
    """Which inputs besides text the model takes."""

    vision: bool


class Props(TypedDict):
    """``/props``.

    `fake_prefix` is the version of the patched request, `fake_prefix_unsupported` the reason why the model's
    memory cannot hold a fabricated prefix, empty if it can; `media_marker` stands for an image in a text.
    """

    fake_prefix: int
    fake_prefix_unsupported: str
    media_marker: str
    modalities: Modalities
    build_info: str
    resolved: Resolved


class TokenProbability(TypedDict):
    """A token and its log probability before the grammar."""

    id: int
    logprob: float


class DecodedToken(TypedDict):
    """A decoded token's most likely alternatives."""

    top_logprobs: list[TokenProbability]


class Completion(TypedDict):
    """``/completion``; `timings` are read by `fakeprefix.server.client.Timings`."""

    timings: dict[str, Any]
    content: NotRequired[str]
    completion_probabilities: NotRequired[list[DecodedToken]]


def top_logprobs(answer: Completion) -> list[TokenProbability]:
    """The most likely first tokens of an answer that was asked for with ``n_probs``."""
    return answer["completion_probabilities"][0]["top_logprobs"]


class LogitBias(TypedDict):
    """An option of a request: ``[[token, bias], ...]``."""

    logit_bias: list[list[float]]
