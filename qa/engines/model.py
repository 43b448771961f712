#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Creates a model for vLLM in the directory DIR: a Qwen2 of four layers with its own tokenizer, without weights.

    VENV/bin/python model.py DIR

vLLM uses random weights (--load-format dummy). The answers have no meaning; only the size of the KV cache matters.
"""

import glob
import json
import os
import sys

VOCABULARY = 2048
POSITIONS = 2048
END = "<|endoftext|>"

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "float32", "vocab_size": VOCABULARY,
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": True, "use_sliding_window": False, "bos_token_id": 0, "eos_token_id": 0,
}


def tokenizer():
    """Returns a tokenizer that is trained on the modules of Python's own library."""
    # Only the environment of vLLM has this package; others read CONFIG.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    result = Tokenizer(models.BPE(unk_token=None))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    texts = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:80]
    result.train(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return result


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: VENV/bin/python model.py DIR")
    directory = sys.argv[1]
    os.makedirs(directory, exist_ok=True)
    tokenizer().save(os.path.join(directory, "tokenizer.json"))
    # config.json comes last: a directory that has it is complete.
    for name, content in (
            ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END,
                                       "model_max_length": POSITIONS}),
            ("generation_config.json", {"eos_token_id": 0}),
            ("config.json", CONFIG)):
        with open(os.path.join(directory, name), "w", encoding="ascii") as file:
            json.dump(content, file)


if __name__ == "__main__":
    main()
