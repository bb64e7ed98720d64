"""Requests to the patched server."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import requests

from fakeprefix.errors import RequestRefused, ServerError
from fakeprefix.server.answers import Completion, Props

CONNECT_TIMEOUT_S = 10.0

# for checks that look at probabilities: random weights give text that is no UTF-8, whose probabilities
# the engine withholds (or answers with HTTP 500). The reported logits are those before the grammar
PLAIN_TEXT_GRAMMAR = "root ::= [a-z ]+"


@dataclass(frozen=True)
class Timings:
    """What the server says about one request; the names are its own.

    Attributes:
        cache_n: prompt tokens that were present already.
        prompt_n: prompt tokens that were computed.
        prompt_ms: from the end of the install to the first sampled token, in ms, image encoding included.
        predicted_n, predicted_ms: tokens decoded and the time for those after the first, in ms.
        prefix_source: ``none``, ``cached``, ``fake`` or ``restored``.
        install_ms, install_meta_ms, install_data_ms: making the prefix present, in ms.
        install_bytes: content written by the install.
        image_encode_ms: the part of `prompt_ms` spent in the vision tower.
        n_kv: columns that the attention read at the end of the prompt.
        seq_pos_max_attn, seq_pos_max_recr: last position of both memories after the install, -1 if absent.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    prefix_source: str
    install_ms: float
    install_meta_ms: float
    install_data_ms: float
    install_bytes: int
    image_encode_ms: float
    n_kv: int
    seq_pos_max_attn: int
    seq_pos_max_recr: int

    @classmethod
    def from_answer(cls, answer: Completion) -> "Timings":
        """Read the ``timings`` of an answer.

        Raises:
            ServerError: a field is missing; the server is not the patched one.
        """
        timings = answer.get("timings", {})
        try:
            return cls(**{name: timings[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise ServerError(f"the answer has no timings.{error.args[0]}; is this the patched server?") from None


class Client:
    """A session with one server.

    Args:
        address: for example ``http://127.0.0.1:8080``.
        key: API key, sent as bearer token.
    """

    def __init__(self, address: str, key: str) -> None:
        self.address = address
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {key}"
        # a proxy of the environment must never see requests to this machine
        self._session.trust_env = False

    def is_healthy(self) -> bool:
        """True once the model is loaded."""
        try:
            return self._session.get(f"{self.address}/health", timeout=2.0).status_code == 200
        except requests.RequestException:
            return False

    def get(self, endpoint: str) -> dict[str, Any]:
        """GET a JSON object, see `post`."""
        return self._send("GET", endpoint, None, 60.0)

    def post(self, endpoint: str, body: Any, timeout_s: float = 3600.0) -> dict[str, Any]:
        """POST a JSON body and read the JSON answer.

        Raises:
            RequestRefused: the status is not 200.
            ServerError: no answer, or not JSON.
        """
        return self._send("POST", endpoint, body, timeout_s)

    def props(self) -> Props:
        """Properties of the server.

        Raises:
            ServerError: the server does not know ``n_fake_cached``.
        """
        props = self.get("/props")
        if props.get("fake_prefix") != 1:
            raise ServerError("the server has no fake_prefix in /props; it is not the patched one")
        return cast(Props, props)

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of a text; special tokens in it are recognized."""
        body = {"content": text, "add_special": add_special, "parse_special": True}
        tokens: list[int] = self.post("/tokenize", body)["tokens"]
        return tokens

    def apply_template(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        """The prompt that the model's own chat template makes of a conversation."""
        body = {"messages": messages, **({"tools": tools} if tools else {})}
        return str(self.post("/apply-template", body)["prompt"])

    def complete(self, prompt: "PromptBody", *, timeout_s: float = 3600.0, **options: Any) -> Completion:
        """One completion in slot 0, greedy, without reuse of anything earlier unless `options` say so."""
        body: dict[str, Any] = {
            "prompt": prompt.payload(),
            "id_slot": 0,
            "cache_prompt": False,
            "temperature": 0.0,
            "n_predict": 1,
        }
        # an answer that ends at once has no probabilities, and decodes fewer tokens than were asked for
        body["ignore_eos"] = True
        return cast(Completion, self.post("/completion", body | options, timeout_s))

    def _send(self, method: str, endpoint: str, body: Any, timeout_s: float) -> dict[str, Any]:
        try:
            response = self._session.request(
                method, self.address + endpoint, json=body, timeout=(CONNECT_TIMEOUT_S, timeout_s)
            )
        except requests.RequestException as error:
            raise ServerError(f"{method} {endpoint}: no answer ({type(error).__name__})") from error
        try:
            answer = response.json()
        except requests.JSONDecodeError:
            raise ServerError(f"{method} {endpoint}: HTTP {response.status_code}, not JSON") from None
        if response.status_code != 200:
            message = answer.get("error", {}).get("message", "") if isinstance(answer, dict) else ""
            raise RequestRefused(response.status_code, message or str(answer)[:200])
        return cast(dict[str, Any], answer)


@dataclass(frozen=True)
class PromptBody:
    """The prompt of a request: token ids, or of text with media markers and the images that replace them.

    Attributes:
        tokens: token ids; used when there are no images.
        text: text with one marker an image.
        images: the encoded image files, in order.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    images: tuple[bytes, ...] = ()

    @classmethod
    def of_tokens(cls, tokens: Sequence[int]) -> "PromptBody":
        return cls(tokens=tuple(tokens))

    def payload(self) -> Any:
        """The value of ``prompt`` in a request."""
        if not self.images:
            return list(self.tokens) if self.tokens else self.text
        media = [base64.b64encode(image).decode("ascii") for image in self.images]
        return {"prompt_string": self.text, "multimodal_data": media}
