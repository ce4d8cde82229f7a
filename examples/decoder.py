"""A small language model that is trained on the card, and talks there.

    python examples/decoder.py                                     train, then talk
    python examples/decoder.py --checkpoint examples/decoder.pt    talk at once
    python examples/decoder.py --checkpoint examples/decoder.pt --compile --sample 0.7

Its parts are those of Granite, and of most decoders today: RMSNorm, rotary positions, attention in
groups with a cache of keys and values, SwiGLU, and an embedding that is also the output. It reads
characters. The text is Python's own language reference, which ships with Python as
``pydoc_data.topics`` (Copyright Python Software Foundation, PSF License Version 2).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})
BATCH = 8
PROMPT = "object.__"
MASKED = torch.finfo(torch.float32).min
EMPTY = torch.iinfo(torch.int64).max
"""The position of a slot in which nothing is kept: after every query, so none attends to it."""


def encode(text: str) -> Tensor:
    """Text as token numbers (1, T) int64; a character that is not in ALPHABET is left out."""
    plain = text.translate(PLAIN)
    numbers = [ALPHABET.index(c) for c in plain if c in ALPHABET]
    return torch.tensor([numbers], dtype=torch.int64)


def read(prompt: str) -> Tensor:
    """The same, of a text that is to be continued. Raises ``ValueError`` where nothing is left."""
    tokens = encode(prompt)
    if not tokens.numel():
        raise ValueError(f"prompt {prompt!r} has no character that the decoder knows")
    return tokens


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder. ``window`` is how many tokens a token sees, itself among them."""

    vocabulary: int = len(ALPHABET)
    window: int = 128
    layers: int = 2
    width: int = 128
    heads: int = 4
    groups: int = 2
    hidden: int = 192

    @property
    def head_width(self) -> int:
        """How wide a head's queries, keys and values are."""
        return self.width // self.heads


class Cache:
    """What attention keeps of the last ``window`` tokens, in slots that are used in turn.

    Nothing in it ever changes its shape, and the number of tokens lies on the card with the rest:
    so a step of decoding is the same program whatever the length.
    """

    def __init__(self, config: Config, batch: int = 1, device: torch.device | str = "cpu") -> None:
        shape = (batch, 2 * config.groups, config.window, config.head_width)
        self.window = config.window
        self.kept = [torch.zeros(shape, device=device) for _ in range(config.layers)]
        self.positions = torch.full((config.window,), EMPTY, device=device)
        self.length = torch.zeros(1, dtype=torch.int64, device=device)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the heads (B, T, H, E) by their tokens' angles; both tables are (T, H, E)."""
    swapped = heads.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return heads * cosines + swapped * sines


class Places(NamedTuple):
    """Where the tokens (T) of a call stand, in all layers alike."""

    slots: Tensor
    mask: Tensor
    cosines: Tensor
    sines: Tensor


class Attention(nn.Module):
    """Heads that share keys and values in groups."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        together = config.heads + 2 * config.groups
        self.inputs = nn.Linear(config.width, together * config.head_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, at: Places, kept: Tensor | None) -> Tensor:
        """(B, T, width) to the same. ``kept`` is the layer's part of a cache."""
        heads, groups = self.config.heads, self.config.groups
        batch, length, width = x.shape
        parts = self.inputs(x).view(batch, length, heads + 2 * groups, -1)
        turned = rotate(parts, at.cosines, at.sines)
        queries, seen = turned[:, :, :heads], turned[:, :, heads:].transpose(1, 2)
        if kept is not None:
            seen = kept.index_copy_(2, at.slots, seen)
        keys, values = seen.chunk(2, 1)
        # The heads of a group see the same: for them, more tokens.
        queries = queries.view(batch, length, groups, heads // groups, -1)
        rows = queries.permute(0, 2, 3, 1, 4).reshape(batch, groups, heads // groups * length, -1)
        found = functional.scaled_dot_product_attention(rows, keys, values, at.mask)
        found = found.view(batch, groups, heads // groups, length, -1).permute(0, 3, 1, 2, 4)
        return self.output(found.reshape(batch, length, width))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.inputs = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.output = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to the same."""
        gate, up = self.inputs(x).chunk(2, -1)
        return self.output(functional.silu(gate) * up)


class Layer(nn.Module):
    """Attention and feed-forward, each on what is normalised and added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(config.width), Attention(config)
        self.forward_norm, self.feed_forward = nn.RMSNorm(config.width), FeedForward(config)

    def forward(self, x: Tensor, at: Places, kept: Tensor | None) -> Tensor:
        """(B, T, width) to the same."""
        x = x + self.attention(self.attention_norm(x), at, kept)
        return x + self.feed_forward(self.forward_norm(x))


class Decoder(nn.Module):
    """From tokens to logits of the token after each of them."""

    rates: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        half = 10_000.0 ** -torch.linspace(0, 1, config.head_width // 2 + 1)[:-1]
        rates = torch.cat((-half, half)).repeat(config.heads + 2 * config.groups, 1)
        rates[-config.groups :] = 0  # values are not turned
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Tokens (B, T) int64 to logits (B, T, vocabulary); T is at most the window.

        With a cache the tokens stand after those that it has seen, and are added to it.
        """
        at = self.places(tokens.shape[1], cache)
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, at, None if cache is None else cache.kept[i])
        return functional.linear(self.norm(x), self.embedding.weight)

    def places(self, length: int, cache: Cache | None) -> Places:
        """Where the next ``length`` tokens stand; they take their slots of the cache."""
        positions = torch.arange(length, device=self.rates.device)
        seen, slots = positions, positions
        if cache is not None:
            positions = positions + cache.length
            slots = positions % cache.window
            seen = cache.positions.index_copy_(0, slots, positions)
            cache.length.add_(length)
        rows = positions.repeat(self.config.heads // self.config.groups).unsqueeze(1)
        angles = positions.view(-1, 1, 1) * self.rates
        return Places(slots, (seen > rows) * MASKED, angles.cos(), angles.sin())


def step(decoder: Decoder, tokens: Tensor, cache: Cache, temperature: float) -> Tensor:
    """Read tokens (B, T), and choose the next ones (B, 1): the best, or drawn if it is warm."""
    logits = decoder(tokens, cache)[:, -1]
    if temperature:
        # Exponential waiting times, each at its own rate: the first to come is drawn by its weight.
        waiting = -torch.rand_like(logits).clamp_min(1e-9).log()
        logits = (logits / temperature).softmax(-1) / waiting
    return logits.argmax(-1, keepdim=True)


def compiled_step() -> Callable[..., Tensor]:
    """The same step as one graph, and one program: a token is one launch.

    Inductor asks of two kernels that are to become one that they share ten bytes; here it is worth
    it for any. What cannot become one is still launched as one, a stage after the other.
    """
    options: dict[str, str | int | bool] = {
        "score_fusion_memory_threshold": 1,
        "aggressive_fusion": True,
    }
    return torch.compile(step, fullgraph=True, options=options)


def generate(
    decoder: Decoder,
    prompt: str,
    length: int,
    temperature: float = 0.0,
    step: Callable[..., Tensor] = step,
) -> Iterator[str]:
    """``length`` characters after the prompt, each as soon as it is there.

    ``step`` may be a ``compiled_step()``. What is drawn is a function of ``torch.manual_seed``, and
    of whether the step is compiled, as long as nobody else draws on that device meanwhile. Of a
    longer prompt the last ``window`` tokens are read.
    Raises ``ValueError`` for a prompt without any.
    """
    device = decoder.rates.device
    cache = Cache(decoder.config, device=device)
    tokens = read(prompt)[:, -decoder.config.window :].to(device)
    with torch.no_grad():
        for _ in range(length):
            tokens = step(decoder, tokens, cache, temperature)
            yield ALPHABET[int(tokens)]


def train(
    device: torch.device | str,
    steps: int,
    config: Config | None = None,
    report: Callable[[int, float], None] = lambda done, loss: None,
) -> tuple[Decoder, list[float]]:
    """A decoder trained from seed 0, and the loss of each step: a function of the arguments."""
    text = encode("\n\n".join(topics[name] for name in sorted(topics)))[0]
    torch.manual_seed(0)
    decoder = Decoder(config or Config()).to(device)
    window = decoder.config.window
    optimizer = torch.optim.AdamW(decoder.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 6e-3, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False
    )
    drawn = torch.Generator().manual_seed(1)
    losses = []
    for done in range(1, steps + 1):
        starts = torch.randint(len(text) - window, (BATCH, 1), generator=drawn)
        pieces = text[starts + torch.arange(window + 1)].to(device)
        logits = decoder(pieces[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        report(done, losses[-1])
    return decoder, losses


def save(decoder: Decoder, path: Path | str) -> None:
    """Write sizes and weights, these as float16."""
    weights = {name: weight.half().cpu() for name, weight in decoder.state_dict().items()}
    torch.save({"config": asdict(decoder.config), "weights": weights}, path)


def load(path: Path | str, device: torch.device | str = "cpu") -> Decoder:
    """The decoder of a file that ``save`` has written, in float32 on a device."""
    saved = torch.load(path, map_location=device, weights_only=True)
    decoder = Decoder(Config(**saved["config"])).to(device)
    decoder.load_state_dict(saved["weights"])
    return decoder


def bar(device: str, steps: int) -> Callable[[int, float], None]:
    """A progress bar of a training run, for ``train`` to call."""

    def report(done: int, loss: float) -> None:
        filled = "#" * (20 * done // steps)
        print(f"\r{device} [{filled:<20}] step {done}/{steps} loss {loss:.3f}", end="", flush=True)

    return report


def loaded(path: Path, device: str) -> Decoder:
    """The decoder of a file that a user has named. Raises ``ValueError`` if there is none in it."""
    try:
        return load(path, device)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} is no checkpoint of this decoder: {first}") from None


def check(flags: argparse.Namespace) -> None:
    """Raise ``ValueError`` for a flag that would fail later, when there is something to lose."""
    try:
        torch.empty(0, device=flags.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {flags.device}: {str(error).splitlines()[0]}") from None
    read(flags.prompt)
    for name, least in (("steps", 1), ("length", 0)):
        if (value := getattr(flags, name)) < least:
            raise ValueError(f"--{name} {value}: must be at least {least}")
    if not 0 <= flags.sample < math.inf:
        raise ValueError(f"--sample {flags.sample}: must be finite and at least 0")
    if flags.save and not flags.save.absolute().parent.is_dir():
        raise ValueError(f"--save: {flags.save.parent} is no directory to save to")


def flags_of() -> argparse.ArgumentParser:
    """What may be asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="spyre", help="spyre, spyre:1, cpu")
    parser.add_argument("--steps", type=int, default=2_000, help="of training")
    parser.add_argument("--checkpoint", type=Path, help="talk at once, with these weights")
    parser.add_argument("--save", type=Path, help="where to write the trained weights")
    parser.add_argument("--compile", action="store_true", help="compile the step of decoding")
    parser.add_argument("--prompt", default=PROMPT, help="in ASCII; what else is in it is not read")
    parser.add_argument("--length", type=int, default=400, help="characters to generate")
    parser.add_argument("--sample", type=float, default=0.0, metavar="TEMPERATURE")
    parser.add_argument("--seed", type=int, default=0, help="of what is sampled")
    return parser


def main() -> None:
    """Read the flags, train or load, and talk."""
    parser = flags_of()
    flags = parser.parse_args()
    try:
        check(flags)
        decoder = loaded(flags.checkpoint, flags.device) if flags.checkpoint else None
    except ValueError as error:
        parser.error(str(error))
    if decoder is None:
        decoder, _ = train(flags.device, flags.steps, report=bar(flags.device, flags.steps))
        print()
    if flags.save:
        save(decoder, flags.save)
    torch.manual_seed(flags.seed)
    chosen = compiled_step() if flags.compile else step
    print(flags.prompt, end="", flush=True)
    for character in generate(decoder, flags.prompt, flags.length, flags.sample, chosen):
        print(character, end="", flush=True)
    print()
    if flags.device.startswith("spyre"):
        print(torch.spyre.fallback_report())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nstopped") from None
