#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""One side of a prefill-decode pair, for `make gpu`: a small Llama of Hugging Face transformers with random weights.

    model.py NAME DEVICE

DEVICE is cuda or cpu. The KV cache of a prompt is one block of memory, which is registered with NIXL. The process first prints a line
of JSON with its address, or with what is "missing". It then answers each line of JSON on standard input with one, and ends with its
standard input:

    {"connect": ADDRESS}            connects to the other side
    {"prefill": SEED}               computes the prompt of this seed into the block; answers with the next token
    {"decode": SEED, "next": TOKEN} reads the block of the other side, computes STEPS tokens with it, and compares their logits with
                                    those of a run without a split
    {"sums": true}                  what the agent has counted
"""

import json
import logging
import sys

sys.dont_write_bytecode = True
import peer  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

LAYERS, HEADS, WIDTH, WORDS = 4, 4, 32, 1000
PROMPT, STEPS = 512, 8


def llama(device):
    """Returns the model. Both sides make the same random weights."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=8 * WIDTH, intermediate_size=512, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=HEADS, max_position_embeddings=2 * PROMPT, attn_implementation="eager")
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(config).to(device).eval()


class Side:
    """The model, the block of its KV cache, and its agent."""

    def __init__(self, name, device):
        self.device, self.model = device, llama(device)
        self.block = torch.zeros((LAYERS, 2, 1, HEADS, PROMPT, WIDTH), device=device)
        api, self.nixl = peer.load_nixl()
        kind = "VRAM" if device == "cuda" else "DRAM"
        self.agent = peer.Agent(api, name, kind, self.block.data_ptr(), self.block.nbytes)

    def prompt(self, seed):
        """Returns the prompt of a seed."""
        return torch.randint(WORDS, (1, PROMPT), generator=torch.Generator().manual_seed(seed)).to(self.device)

    def prefill(self, seed):
        """Computes the KV cache of a prompt into the block. Returns the next token."""
        done = self.model(self.prompt(seed), use_cache=True)
        for layer, cached in enumerate(done.past_key_values.layers):
            self.block[layer, 0], self.block[layer, 1] = cached.keys, cached.values
        self.finish()
        return done.logits[0, -1].argmax().item()

    def read(self):
        """Reads the block of the other side, a piece for each layer's keys and values."""
        size = self.block.nbytes // (2 * LAYERS)
        pieces = [(number * size, size) for number in range(2 * LAYERS)]
        agent = self.agent
        agent.transfer("READ", agent.descs(agent.at, pieces), agent.descs(agent.remote_at, pieces), self.block.nbytes)

    def steps(self, token):
        """Computes STEPS tokens with the KV cache of the block. Returns them and their logits."""
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(self.block):
            cache.update(keys.clone(), values.clone(), layer)
        tokens, logits = [token], []
        for _ in range(STEPS):
            done = self.model(torch.tensor([tokens[-1:]], device=self.device), past_key_values=cache, use_cache=True)
            logits.append(done.logits[0, -1])
            tokens.append(logits[-1].argmax().item())
        return tokens[:STEPS], torch.stack(logits)

    def decode(self, seed, token):
        """Computes tokens after a prompt. Returns their largest differences in logits to a run without a split, and without a KV cache."""
        self.block.zero_()
        self.finish()
        _, uncached = self.steps(token)
        self.read()
        tokens, logits = self.steps(token)
        whole = self.model(torch.cat([self.prompt(seed), torch.tensor([tokens], device=self.device)], dim=1), use_cache=False)
        expected = whole.logits[0, PROMPT:]
        right = [token, *expected.argmax(dim=1).tolist()][:STEPS] == tokens and whole.logits[0, PROMPT - 1].argmax().item() == token
        return dict(right=right, difference=(logits - expected).abs().max().item(),
                    uncached=(uncached - expected).abs().max().item())

    def finish(self):
        """Waits until the GPU has done all work on the block."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def main():
    logging.disable(logging.INFO)
    name, device = sys.argv[1:]
    if not hasattr(transformers.DynamicCache(), "layers"):
        peer.answer(dict(missing=f"transformers 4.54 or later, this is {transformers.__version__}"))
        return
    torch.set_float32_matmul_precision("highest")
    with torch.inference_mode():
        side = Side(name, device)
        side.finish()
        peer.answer(dict(nixl=side.nixl, transformers=transformers.__version__, torch=torch.__version__,
                         address=side.agent.address()))
        for line in sys.stdin:
            request = json.loads(line)
            if "connect" in request:
                side.agent.connect(request["connect"])
                peer.answer({})
            elif "prefill" in request:
                peer.answer(dict(next=side.prefill(request["prefill"])))
            elif "decode" in request:
                peer.answer(side.decode(request["decode"], request["next"]))
            else:
                peer.answer({name: side.agent.sums})


if __name__ == "__main__":
    main()
