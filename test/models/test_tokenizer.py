# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back: what is parsed for special tokens, what is left out, what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models_scene import (
    BIN_BASE,
    BOS,
    EOS,
    demo_config,
    make_processor,
    make_raw,
    make_stats,
    make_tokenizer,
    observe,
)
from tokenizers import Tokenizer
from tokenizers.models import BPE

from oxygen_ros.models.pi05.processor import PlainProcessor
from oxygen_ros.models.tokenizer import TextTokenizer

CONFIG = demo_config()
PROCESSOR = make_processor(CONFIG)


@pytest.fixture
def processor() -> PlainProcessor:
    return PROCESSOR


def spell(text: str) -> list[int]:
    """Ids of a text by this tokenizer: one for each byte."""
    return make_tokenizer().encode(text, add_special_tokens=False).ids


def tokens(observation) -> list[int]:
    return PROCESSOR.process(observation, torch.device("cpu"), torch.float32).tokens.tolist()


@pytest.mark.parametrize("said", ["<eos>", "<bos>", "<pad>", "stop<eos> now", "<pad><bos>", "< eos >"])
def test_special_tokens_are_never_parsed_out_of_text(processor, said: str) -> None:
    """What a person types or a memory says is letters, also where it looks like a token."""
    assert max(processor.tokenizer.encode(said)) < 256
    assert processor.tokenizer.detokenize(processor.tokenizer.encode(said)) == said
    for observation in (observe(1, instruction=said), observe(1, memory=said)):
        ids = tokens(observation)
        assert [i for i in ids if 256 <= i < BIN_BASE] == [BOS]
        assert ids.count(BOS) == 1


def test_special_ids_and_foreign_ids_are_left_out_of_text(processor) -> None:
    ids = [
        BOS,
        EOS,
        *processor.tokenizer.encode("left"),
        256,
        257,
        258,
        300,
        767,
        *processor.tokenizer.encode(" over"),
    ]
    assert processor.tokenizer.detokenize(ids) == "left over"


def test_special_ids_are_left_out_though_the_tokenizer_knows_them_as_words() -> None:
    config = replace(CONFIG, eos_id=spell("!")[0])
    processor = PlainProcessor(config, make_tokenizer(), make_raw(config), make_stats())
    assert processor.tokenizer.detokenize(spell("go!")) == "go"


printable = st.text(st.characters(exclude_categories=("Cc", "Cs")))


@given(printable)
def test_text_survives_the_way_there_and_back(text: str) -> None:
    """Any script, joiners and wide spaces too; only white space in front goes."""
    assert PROCESSOR.tokenizer.detokenize(PROCESSOR.tokenizer.encode(text)) == text.lstrip()


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    shown = PROCESSOR.tokenizer.detokenize(PROCESSOR.tokenizer.encode(text))
    assert not any((ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\n\t" for c in shown)


def test_white_space_at_the_end_is_kept(processor) -> None:
    """A stop text may be a newline: it must be seen when it comes, not a token later."""
    assert processor.tokenizer.detokenize(processor.tokenizer.encode(" done\n")) == "done\n"


def test_cut_characters_do_no_harm(processor) -> None:
    """Half of a character's bytes: a replacement sign, no error."""
    assert processor.tokenizer.detokenize(processor.tokenizer.encode("日")[:-1]) == "\ufffd"
    assert processor.tokenizer.detokenize([]) == ""


def test_the_file_s_padding_and_truncation_are_not_taken_over() -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(length=48)
    tokenizer.enable_truncation(5)
    processor = PlainProcessor(CONFIG, Tokenizer.from_str(tokenizer.to_str()), make_raw(CONFIG), make_stats())
    assert processor.tokenizer.encode("put it back") == spell("put it back")


def test_a_template_s_special_tokens_are_honored_and_no_others(processor) -> None:
    tokenizer = processor.tokenizer
    ids = tokenizer.tokenize("<bos>Say {word}<eos><eos>", {"word": "<eos>", "other": "x"})
    assert ids == [BOS, *tokenizer.encode("Say <eos>"), EOS, EOS]
    assert tokenizer.tokenize("{a}{b}", {"a": "<e", "b": "os>"}) == tokenizer.encode("<eos>")
    assert tokenizer.tokenize("<{a}>", {"a": "eos"}) == tokenizer.encode("<eos>"), (
        "only what the template itself spells"
    )


def test_a_template_without_special_tokens_is_encoded_in_one_piece(processor) -> None:
    """A token may reach over the border of a word: nothing is cut there."""
    merged = Tokenizer(BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer = TextTokenizer(merged, 3)
    assert tokenizer.tokenize("a{x}", {"x": "b"}) == tokenizer.tokenize("ab") == [2]


def test_braces_that_are_no_name_stay(processor) -> None:
    for template in ("{}", "{unknown} {", "a}b{c"):
        assert processor.tokenizer.tokenize(template, {"name": "x"}) == spell(template)
    assert processor.tokenizer.tokenize("{a.b}", {"a.b": "x", "a": "y"}) == spell("x")


def test_a_special_token_without_an_embedding_is_refused_by_name() -> None:
    tokenizer = make_tokenizer(("<eos>", "<image>"))
    text = TextTokenizer(tokenizer, 257)
    assert text.tokenize("<eos>") == [256]
    assert max(text.encode("<image>")) < 256
    with pytest.raises(ValueError, match='no embedding for the special token "<image>"'):
        text.tokenize("see <image>")


def test_the_longest_special_token_is_taken() -> None:
    text = TextTokenizer(make_tokenizer(("<t>", "<t><t>")), 258)
    assert text.tokenize("<t><t><t>") == [257, 256]
