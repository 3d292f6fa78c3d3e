# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back, by the tokenizer.json of a checkpoint folder.

Here lives what every pi0.5 processor does alike; what a prompt is made of is each processor's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unicodedata import category

from tokenizers import Tokenizer

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.pi05.config import Pi05Config


class Words:
    """A tokenizer as the network's embeddings know it. Ids of text are below `config.vocabulary`."""

    def __init__(self, tokenizer: Tokenizer, config: Pi05Config) -> None:
        """Raises ModelError when text can become an id that the network has no embedding for."""
        count = _count_text_ids(tokenizer, config.vocabulary)
        if count > config.vocabulary:
            raise ModelError(
                f"tokenizer.json has {count} ids, the network's vocabulary only "
                f"{config.vocabulary}: they belong to different checkpoints"
            )
        # The file keeps its maker's settings. Here a text is never cut or padded, and a "<eos>" that
        # somebody says is five letters.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._size = tokenizer.get_vocab_size()
        self._special = {config.pad_id, config.bos_id, config.eos_id}

    def find(self, token: str) -> int | None:
        """The id of a token by its name; None when there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        words = [i for i in ids if i < self._size and i not in self._special]
        # Whoever echoes the topic shows this on a terminal: no control characters. Spaces of other
        # scripts and joiners stay, though Python calls them unprintable too.
        shown = (c for c in self._tokenizer.decode(words) if category(c) != "Cc" or c in "\n\t")
        # A text follows its prompt's space. Its end is kept: a stop text may be white space.
        return "".join(shown).lstrip()


def read_tokenizer(file: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises ModelError naming a file that cannot be read."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for every kind of bad file
        raise ModelError(f"{file} cannot be read: {error}") from None


def _count_text_ids(tokenizer: Tokenizer, vocabulary: int) -> int:
    """Number of ids up to the last one that text can become.

    PaliGemma's file ends with a special "<image>" that has no embedding in pi0.5; text never becomes it.
    """
    size: int = tokenizer.get_vocab_size()
    if size <= vocabulary:
        return size
    special = {at for at, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return 1 + max((at for at in tokenizer.get_vocab().values() if at not in special), default=-1)
