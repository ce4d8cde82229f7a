"""Keeping Python's garbage collector out while something is half done."""

from __future__ import annotations

from torch_spyre_ref.emulator.clock import COLLECTION_PAUSE, CollectionPause


def collection_paused() -> CollectionPause:
    """No garbage collection inside: a finaliser must not meet a half-changed region."""
    return COLLECTION_PAUSE
