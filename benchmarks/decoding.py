"""The decoder of ``examples/`` as the ladder drives it: fed by its host, token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from examples import decoder as example

CHECKPOINT = Path(example.__file__).with_suffix(".pt")
TEXT = "refers to the object"
"""What the host sends after the prompt, whatever the decoder would have said: every rung then does
the same work, and none has to wait for an answer."""

WIDE = example.Config(width=1024, heads=8, groups=2, hidden=2048)
"""Sizes with which a step computes for longer than the host needs to submit it, as any model does
that a card is bought for. Its weights are drawn, not trained: no figure of it is about words."""


def trained(device: str = "spyre") -> example.Decoder:
    """The decoder of the committed checkpoint."""
    return example.load(CHECKPOINT, device).eval()


def wide(device: str = "spyre") -> example.Decoder:
    """One of the same code, with ``WIDE`` sizes."""
    torch.manual_seed(0)
    return example.Decoder(WIDE).to(device).eval()


class Decoding:
    """A decoder that has read its prompt.

    Args:
        step: ``examples.decoder.step``, or the same compiled.
    """

    def __init__(
        self, decoder: example.Decoder, step: Callable[..., torch.Tensor] = example.step
    ) -> None:
        self.decoder, self._step = decoder, step
        self._device = decoder.rates.device
        self.cache = example.Cache(decoder.config, device=self._device)
        pin = self._device.type != "cpu"
        prompt, text = example.encode(example.PROMPT), example.encode(TEXT)
        self._prompt = prompt.pin_memory() if pin else prompt
        pieces = [text[0, i].reshape(1, 1) for i in range(text.shape[1])]
        self._pieces = [piece.pin_memory() if pin else piece for piece in pieces]
        self.prefill()
        self.decode(2)

    def prefill(self) -> torch.Tensor:
        """Read the prompt; the next token, on the card, whether it is computed yet or not."""
        return self._next(self._prompt)

    def decode(self, tokens: int) -> torch.Tensor:
        """Read so many tokens of the text; the next one, likewise."""
        for number in range(tokens):
            last = self._next(self._pieces[number % len(self._pieces)])
        return last

    def talk(self, tokens: int) -> list[int]:
        """Decode so many tokens, each read by the host before it sends the next one."""
        return [int(self.decode(1)) for _ in range(tokens)]

    def _next(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            there = tokens.to(self._device, non_blocking=True)
            return self._step(self.decoder, there, self.cache, 0.0)
