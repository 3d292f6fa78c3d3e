# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back: what is never parsed, what is never shown, what survives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models_scene import (
    BIN_BASE,
    BOS,
    demo_config,
    make_processor,
    make_raw,
    make_stats,
    make_tokenizer,
    observe,
)
from tokenizers import Tokenizer

from oxygen_ros.models.pi05.processor import PlainProcessor

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
    assert max(processor.tokenize(said)) < 256
    assert processor.detokenize(processor.tokenize(said)) == said
    for observation in (observe(1, instruction=said), observe(1, memory=said)):
        ids = tokens(observation)
        assert [i for i in ids if 256 <= i < BIN_BASE] == [BOS]
        assert ids.count(BOS) == 1


def test_special_ids_and_foreign_ids_are_left_out_of_text(processor) -> None:
    ids = [BOS, *processor.tokenize("left"), 256, 257, 258, 300, 767, *processor.tokenize(" over")]
    assert processor.detokenize(ids) == "left over"


def test_special_ids_are_left_out_though_the_tokenizer_knows_them_as_words() -> None:
    config = replace(CONFIG, eos_id=spell("!")[0])
    processor = PlainProcessor(config, make_tokenizer(), make_raw(config), make_stats())
    assert processor.detokenize(spell("go!")) == "go"


printable = st.text(st.characters(exclude_categories=("Cc", "Cs")))


@given(printable)
def test_text_survives_the_way_there_and_back(text: str) -> None:
    """Any script, joiners and wide spaces too; only white space in front goes."""
    assert PROCESSOR.detokenize(PROCESSOR.tokenize(text)) == text.lstrip()


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    shown = PROCESSOR.detokenize(PROCESSOR.tokenize(text))
    assert not any((ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\n\t" for c in shown)


def test_white_space_at_the_end_is_kept(processor) -> None:
    """A stop text may be a newline: it must be seen when it comes, not a token later."""
    assert processor.detokenize(processor.tokenize(" done\n")) == "done\n"


def test_cut_characters_do_no_harm(processor) -> None:
    """Half of a character's bytes: a replacement sign, no error."""
    assert processor.detokenize(processor.tokenize("日")[:-1]) == "\ufffd"
    assert processor.detokenize([]) == ""


def test_the_file_s_padding_and_truncation_are_not_taken_over() -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(length=48)
    tokenizer.enable_truncation(5)
    processor = PlainProcessor(CONFIG, Tokenizer.from_str(tokenizer.to_str()), make_raw(CONFIG), make_stats())
    assert processor.tokenize("put it back") == spell("put it back")
