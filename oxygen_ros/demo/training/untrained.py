# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint folder with random weights: python -m oxygen_ros.demo.training.untrained FOLDER

The folder holds config.json, model.safetensors, tokenizer.json and norm_stats.json. A trained model replaces
these files and nothing else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from oxygen_ros.demo.sim import geometry
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.words import all_sentences
from oxygen_ros.models.pi05.config import PRESETS, to_dimensions
from oxygen_ros.models.pi05.network import random_network
from oxygen_ros.models.pi05.weights import save_network
from oxygen_ros.models.processing import STATE_BINS

# A delta chunk moves a joint at most about this far from where it was seen [rad].
LARGEST_DELTA = 0.15
# The text around the state, and the kinds' prompt suffixes.
_FRAME = (
    "Task: ",
    " Memory: ",
    " State: ",
    " Action: ",
    "Narration: ",
    "Subtask: ",
    "Question: ",
    " Answer: ",
)


def train_tokenizer(size: int) -> Tokenizer:
    """A byte-level BPE of at most `size` ids over the demo's grammar; any text encodes with it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tasks = [Task(color, count).instruction for color in geometry.COLORS for count in (1, 2)]
    questions = ["how many are in the box?", "what is left?", "what are you doing?"]
    tokenizer.train_from_iterator([*all_sentences(), *tasks, *questions, *_FRAME], trainer)
    return tokenizer


def write_untrained(folder: Path, seed: int = 0) -> None:
    """Write the folder; the same seed gives the same bytes."""
    config = PRESETS["demo"]
    words = config.vocabulary - STATE_BINS  # the bins are the last ids
    tokenizer = train_tokenizer(words - 3)
    specials = {"pad": words - 3, "bos": words - 2, "eos": words - 1}
    raw = to_dimensions(config)
    raw["description"] = "The model is untrained: its chunks and words are random."
    raw["special_ids"] = specials
    raw["state_bin_base"] = words
    raw["actions"] = {"joints": list(geometry.JOINTS), "delta": list(geometry.JOINTS[:6])}
    delta = [LARGEST_DELTA] * 6
    stats = {
        "state": {"q01": geometry.JOINT_LOWER.tolist(), "q99": geometry.JOINT_UPPER.tolist()},
        "actions": {
            "q01": [*(-d for d in delta), geometry.CLOSED],
            "q99": [*delta, geometry.OPEN],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    (folder / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    network = random_network(config, seed)
    # Short embeddings for what is no word: greedy text then has words.
    texts = [tokenizer.decode([i]).strip() for i in range(config.vocabulary)]
    network.embedding[[i for i, text in enumerate(texts) if len(text) < 3 or not text.isalpha()]] *= 0.3
    save_network(network, folder / "model.safetensors", torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder to write; made if missing")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_untrained(arguments.folder, arguments.seed)
    size = (arguments.folder / "model.safetensors").stat().st_size
    print(f"wrote an untrained demo model to {arguments.folder} ({size / 1e6:.1f} MB of weights)")


if __name__ == "__main__":
    main()
