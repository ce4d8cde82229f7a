"""Answers to the exercises of chapter 6.

1. Predict. A wider decoder has larger tensors in the same kernels, and a longer window a longer cache:
   the number of launches belongs to the *code*, and so does what the host sends and reads. More layers
   are more kernels; tensors still cross the link as one token in and one out. How many heads share a key
   changes sizes, not kernels. Two conversations are two tokens in and two out, by the same launches.
"""

import torch

from benchmarks.ladder import observed
from examples.decoder import Cache, Config, Decoder, encode, step

PREDICTION = {
    "twice as wide": ("same", "same"),
    "twice as many layers": ("more", "same"),
    "a window twice as long": ("same", "same"),
    "twice as many heads share a key": ("same", "same"),
    "two conversations in one batch": ("same", "more"),
}


# 2. Extend. A step takes tokens on the card and leaves one there, so the loop needs nobody; what it has
# left is put together on the card, too, and read once.
def talk_at_once(decoder, way, prompt, length):
    """A list of `length` token numbers that follow a prompt."""
    cache = Cache(decoder.config, device="spyre")
    tokens, said = encode(prompt).spyre(), []
    with torch.no_grad():
        for _ in range(length):
            tokens = way(decoder, tokens, cache, 0.0)
            said.append(tokens)
        return torch.cat(said, 1)[0].tolist()


# 3. Open. `balance` measures one size and one batch. The host's share is the number of operations, since
# each costs a submission; it hardly changes. A width makes the weights more, and a token needs them all:
# computing grows with its square, and tokens in a second fall once it is the longer of the two. A batch
# reads the weights once for all its conversations: as long as the host is the longer one, each further
# conversation is free, and nobody waits longer for a token. That ends where computing a batch takes
# longer than submitting it. For the little decoder to be compute bound alone, a step would have to be
# fewer operations: a whole layer in one program, or many launches in one submission, as a recorded graph
# of launches would be. (It would be a graph again, but made once, and not for every launch.)
def balance(width, batch, steps=8):
    """Virtual ns of a step: in all, computing, and submitting; and tokens in a second."""
    torch._dynamo.reset()
    heads = max(4, width // 128)
    decoder = Decoder(Config(width=width, heads=heads, groups=2, hidden=2 * width)).spyre()
    cache = Cache(decoder.config, batch, "spyre")
    way = torch.compile(step, fullgraph=True, dynamic=False)
    token = torch.zeros(batch, 1, dtype=torch.int64).pin_memory()

    def decode(count):
        for _ in range(count):
            way(decoder, token.to("spyre", non_blocking=True), cache, 0.0)

    with torch.no_grad():
        decode(2)
        run = observed(lambda: decode(steps))
    total = run.makespan // steps
    submitted = [record for record in run.records if record.kind != "Fill"]  # no poison, that is
    submitting = 1000 * len(submitted) // steps
    return total, run.busy("compute") // steps, submitting, batch * 1_000_000_000 // total
