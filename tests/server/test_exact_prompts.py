import pytest
from fakeprefix.errors import MeasureError
from fakeprefix.server.exact_prompts import CANDIDATES, Image, PromptBuilder, Segment

MARKER = "<image>"


class Tokenizer:
    """One token a word, with a word in front if asked for special tokens."""

    def __init__(self, bos=(), split=()):
        self.bos, self.split, self.ids = list(bos), split, {}

    def tokenize(self, text, *, add_special=False):
        tokens = list(self.bos) if add_special else []
        for word in text.split():
            parts = [word, word + "+"] if word in self.split else [word]
            tokens += [self.ids.setdefault(part, 100 + len(self.ids)) for part in parts]
        return tokens


def test_token_prompts_have_exactly_the_wanted_length():
    builder = PromptBuilder(Tokenizer(), MARKER)
    prompt = builder.prompt([Segment(100, "a"), Segment(7, "b")])
    assert len(prompt.tokens) == 107
    assert prompt == builder.prompt([Segment(100, "a"), Segment(7, "b")])
    assert prompt.tokens[:100] == builder.prompt([Segment(100, "a"), Segment(7, "c")]).tokens[:100]


def test_a_leading_token_of_the_engine_counts_as_text():
    prompt = PromptBuilder(Tokenizer(bos=[1]), MARKER).prompt([Segment(10, "a")])
    assert len(prompt.tokens) == 10
    assert prompt.tokens[0] == 1


def test_image_prompts_have_one_marker_an_image_and_counted_texts():
    tokenizer = Tokenizer()
    builder = PromptBuilder(tokenizer, MARKER)
    image = Image(b"png", 20)
    prompt = builder.prompt([Segment(30, "a"), Segment(5, "b"), Segment(12, "c", image), Segment(0, "d", image)])
    texts = prompt.text.split(MARKER)
    assert [len(tokenizer.tokenize(text)) for text in texts] == [35, 12, 0]
    assert prompt.images == (b"png", b"png")


def test_words_of_more_than_one_token_are_not_used():
    split = set(CANDIDATES[5:50])
    builder = PromptBuilder(Tokenizer(split=split), MARKER)
    text = builder.prompt([Segment(300, "a"), Segment(0, "b", Image(b"x", 3))]).text
    assert not split & set(text.replace(MARKER, " ").split())


def test_a_tokenizer_without_common_words_is_refused():
    with pytest.raises(MeasureError, match="common words"):
        PromptBuilder(Tokenizer(split=set(CANDIDATES)), MARKER)


def test_a_text_that_the_server_counts_otherwise_is_an_error():
    tokenizer = Tokenizer()
    builder = PromptBuilder(tokenizer, MARKER)
    tokenizer.split = set(CANDIDATES)
    with pytest.raises(MeasureError, match="the server counts"):
        builder.prompt([Segment(5, "a", Image(b"x", 3))])
