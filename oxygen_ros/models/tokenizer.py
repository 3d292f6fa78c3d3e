# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, by the tokenizer.json of a checkpoint folder.

Special tokens are honored in prompt templates, never in text from a person or the model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from unicodedata import category

from tokenizers import Tokenizer

from oxygen_ros.models.errors import ModelError


class TextTokenizer:
    """A tokenizer for a network with embeddings of some ids."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, special: Collection[int] = ()) -> None:
        """vocabulary: ids the network has an embedding for; special: ids that `decode` leaves out

        Raises ModelError when text can become an id that the network has no embedding for.
        """
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = {token.content: at for at, token in added if token.special}
        # PaliGemma's file ends with a special "<image>" without an embedding in pi0.5; text never becomes it.
        without = set(self._special.values())
        count: int = tokenizer.get_vocab_size()
        if count > vocabulary:
            count = 1 + max((at for at in tokenizer.get_vocab().values() if at not in without), default=-1)
        if count > vocabulary:
            raise ModelError(
                f"tokenizer.json has {count} ids, the network's vocabulary only "
                f"{vocabulary}: they belong to different checkpoints"
            )
        # Replace the file's settings: no text is cut or padded, and a person's "<eos>" is five letters.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._size: int = tokenizer.get_vocab_size()
        self._left_out = set(special)
        # The longest first: one special token may begin another.
        spelled = sorted(self._special, key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(map(re.escape, spelled))})") if spelled else None

    def find(self, token: str) -> int | None:
        """The id of a token by its name; None when there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: a special token spelled in it is letters."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        """Ids of a prompt template, see `Model.tokenize`. A template without special tokens is encoded in one
        piece, with the words in it.

        Raises ValueError for a special token that the network has no embedding for.
        """
        ids: list[int] = []
        for piece in self._splitter.split(template) if self._splitter else [template]:
            at = self._special.get(piece)
            if not piece:
                continue
            if at is None:
                ids += self.encode(fill(piece, words or {}))
            elif at < self._vocabulary:
                ids.append(at)
            else:
                raise ValueError(f'the network has no embedding for the special token "{piece}"')
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids, see `Model.detokenize`."""
        kept = [i for i in ids if i < self._size and i not in self._left_out]
        # A terminal may show the text: no control characters. Spaces of other scripts and joiners stay,
        # which Python counts as unprintable too.
        shown = (c for c in self._tokenizer.decode(kept) if category(c) != "Cc" or c in "\n\t")
        # A text follows its prompt's space. Its end is kept: a stop text may be white space.
        return "".join(shown).lstrip()


def fill(template: str, words: Mapping[str, str]) -> str:
    """The template with words[name] in place of each "{name}"; what the words spell is not filled again."""
    if not words:
        return template
    names = "|".join(map(re.escape, words))
    return re.sub(f"{{({names})}}", lambda match: words[match[1]], template)


def read_tokenizer(file: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises ModelError naming a file that cannot be read."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for every kind of bad file
        raise ModelError(f"{file} cannot be read: {error}") from None
