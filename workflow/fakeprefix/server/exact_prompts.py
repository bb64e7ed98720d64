"""Prompts of exactly so many tokens, fresh for every repetition and equal across arms.

The content of a prompt does not change what it costs, its length in tokens does. Text is drawn
from words that are one token each behind a space; every text is counted by the server before it is used.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fakeprefix.errors import MeasureError
from fakeprefix.server.answers import LogitBias
from fakeprefix.server.client import Client, PromptBody

# common English words; which of them are single tokens is asked of the server
WORDS = """
able about above across add after again against age air all along also always am an and animal answer any are
area as ask at away back base be beauty because become bed been before began behind best better between big bird
black blue boat body book both box boy bring brought build built busy but by call came can car care carry cause
center certain change check children city class clear close cold color come common complete contain correct
could country course cover cross cry cut dark day deep develop did differ direct do does dog done door down draw
drive dry during each early earth ease east eat end enough even ever every example eye face fact fall family far
farm fast father feel feet few field figure fill final find fine fire first fish five fly follow food foot for
force form found four free friend from front full game gave get girl give go gold good got govern great green
ground group grow had half hand happen hard has have he head hear heat help her here high him his hold home
horse hot hour house how hundred I idea if in inch interest is island it just keep kind king knew know land
language large last late laugh lay lead learn leave left less let letter life light like line list listen little
live long look lot love low machine made main make man many map mark may me mean measure men might mile mind
minute miss money moon more morning most mother mountain move much multiply music must my name near need never
new next night no north notice noun now number numeral object of off often oh old on once one only open or order
other our out over own page paper part pass pattern people perhaps person picture piece place plain plan plane
plant play point port pose possible pound power present press problem produce product pull put question quick
rain ran reach read ready real record red remember rest right river road rock room round rule run said same saw
say school science sea second see seem self sentence serve set several shape she ship short should show side
simple since sing sit six size sleep slow small snow so some song soon sound south special spell stand star
start state stay step still stood stop story street strong study such sun sure surface system table tail take
talk teach tell ten test than that the their them then there these they thing think this those though thought
thousand three through time to together told too took top toward town travel tree true try turn two under unit
until up upon us use usual very voice vowel wait walk want war warm was watch water way we week weight well went
were west what wheel when where which while white who whole why will wind with wonder wood word work world would
write year yes yet you young your
"""
CANDIDATES = tuple(WORDS.split())

# a word, as text or as its token id
Word = TypeVar("Word", str, int)


@dataclass(frozen=True)
class Image:
    """An image of a prompt.

    Attributes:
        data: the encoded file.
        tokens: cells that it occupies, with the marks that the engine puts around it.
    """

    data: bytes
    tokens: int


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt: so many tokens of text, behind an image if there is one.

    Attributes:
        text_tokens: tokens of the text.
        seed: the same seed gives the same words.
        image: comes in front of the text.
    """

    text_tokens: int
    seed: str
    image: Image | None = None


class PromptBuilder:
    """Builds prompts for one server.

    Args:
        client: the server that counts the tokens.
        media_marker: what stands for an image in a text, from ``/props``.

    Raises:
        MeasureError: the tokenizer has too few words of one token.
    """

    def __init__(self, client: Client, media_marker: str) -> None:
        self._client = client
        self._marker = media_marker
        self._first, self._rest = self._single_token_words()
        # tokens that the engine puts in front of every text, a BOS for example
        self._special = tuple(client.tokenize("", add_special=True))

    def _single_token_words(self) -> tuple[str, dict[str, int]]:
        """A word that is one token at the start of a text, and those that are one behind a space."""
        anchor = CANDIDATES[0]
        rest: dict[str, int] = {}
        at_once = self._client.tokenize(" ".join(CANDIDATES))
        if len(at_once) == len(CANDIDATES):
            rest = dict(zip(CANDIDATES[1:], at_once[1:], strict=True))
        else:
            alone = self._client.tokenize(anchor)
            for word in CANDIDATES[1:]:
                tokens = self._client.tokenize(f"{anchor} {word}")
                if len(alone) == 1 and tokens[:1] == alone and len(tokens) == 2:
                    rest[word] = tokens[1]
        if len(rest) < 100:
            raise MeasureError(
                f"the model's tokenizer knows only {len(rest)} of {len(CANDIDATES)} common words as one token; "
                "texts of an exact length cannot be made for it"
            )
        return anchor, rest

    @property
    def one_word_answer(self) -> LogitBias:
        """Options by which every decoded token is one certain word, at next to no cost.

        Over a fabricated prefix, and with random weights always, a model may say what is no UTF-8, and
        the engine answers some of that with HTTP 500 instead of timings.
        """
        return LogitBias(logit_bias=[[next(iter(self._rest.values())), 1000.0]])

    def prompt(self, segments: Sequence[Segment], as_text: bool = False) -> PromptBody:
        """The segments in order, as token ids, or as text with media markers if there is an image.

        Args:
            as_text: as text in any case; a prefix is the same tokens as in front of an image then.

        Raises:
            MeasureError: the exact number of tokens cannot be made.
        """
        if as_text or any(segment.image for segment in segments):
            return self._text_prompt(segments)
        ids = list(self._special)
        special = len(ids)
        for segment in segments:
            ids += self._draw(segment, list(self._rest.values()), special)
            special = max(0, special - segment.text_tokens)
        return PromptBody.of_tokens(ids)

    @staticmethod
    def _draw(segment: Segment, words: Sequence[Word], already_there: int) -> list[Word]:
        return random.Random(segment.seed).choices(words, k=max(0, segment.text_tokens - already_there))

    def _text_prompt(self, segments: Sequence[Segment]) -> PromptBody:
        runs: list[list[str]] = [[]]
        images = []
        special = len(self._special)
        for segment in segments:
            if segment.image is not None:
                images.append(segment.image.data)
                runs.append([])
            runs[-1] += self._draw(segment, list(self._rest), special)
            special = max(0, special - segment.text_tokens)
        if special:
            raise MeasureError(
                "the first text of a prompt is shorter than the tokens that the engine puts in front of it"
            )
        return PromptBody(text=self._marker.join(self._counted(run) for run in runs), images=tuple(images))

    def _counted(self, words: list[str]) -> str:
        """A text whose first word has no space in front, checked to be one token a word."""
        if not words:
            return ""
        text = " ".join([self._first, *words[1:]])
        counted = len(self._client.tokenize(text))
        if counted != len(words):
            raise MeasureError(f"a text of {len(words)} tokens was wanted, the server counts {counted}")
        return text
