"""torch_spyre_ref: an emulated dataflow card as a native PyTorch device.

``import torch`` finds this package through its ``torch.backends`` entry point and calls
``_autoload``. Importing the package itself imports no torch and starts no card.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_spyre_ref.parts import Parts

__version__ = "0.1.0"


def register(parts: Parts | None = None) -> None:
    """Make ``torch.device("spyre")`` work, with these parts (default: the shipped ones).

    Calling it again is harmless; calling it with other parts installs those.

    Raises:
        ImportError: the extension is missing, or was built for another torch.
        RuntimeError: other parts were asked for while tensors live on a card.
    """
    # First, and alone: importing torch calls this function by way of its entry point, which must
    # not find the next line half done.
    import torch  # noqa: F401

    from torch_spyre_ref import registration

    registration.register(parts)


def _autoload() -> None:
    # Whoever imports a module of this package before torch meets torch in that module's first
    # lines, and torch comes here, which needs the module whole. So it is imported anew, and that
    # one is what the import statement gets.
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__name__}.") and getattr(module.__spec__, "_initializing", False):
            del sys.modules[name]
    # All that these imports make stays. To look for garbage meanwhile, among everything that torch
    # has made before, would take a third of their time.
    collects = gc.isenabled()
    gc.disable()
    try:
        register()
    finally:
        if collects:
            gc.enable()
