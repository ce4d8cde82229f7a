"""The language model of the examples says on the card what it says on the CPU."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from literate import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what torch has deprecated in itself
    import torch._dynamo
    import torch._inductor.compile_fx

CHECKPOINT = ROOT / "examples" / "decoder.pt"
LENGTH = 160


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    torch.spyre.reset_fallback_report()
    yield
    torch.accelerator.synchronize()
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("decoder", ROOT / "examples" / "decoder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["decoder"] = module
    spec.loader.exec_module(module)
    return module


def small(example: ModuleType, **sizes: int) -> Any:
    """Sizes that are quick to compile and run."""
    few = {"window": 16, "layers": 1, "width": 32, "heads": 4, "groups": 2, "hidden": 48}
    return replace(example.Config(), **few | sizes)


def untrained(example: ModuleType, device: str, **sizes: int) -> Any:
    torch.manual_seed(0)
    return example.Decoder(small(example, **sizes)).to(device)


def talk(example: ModuleType, decoder: Any, length: int = LENGTH, **options: Any) -> str:
    return "".join(example.generate(decoder, example.PROMPT, length, **options))


def test_greedy_is_the_same_on_the_card_compiled_and_on_the_cpu(example: ModuleType) -> None:
    wanted = talk(example, example.load(CHECKPOINT))
    decoder = example.load(CHECKPOINT, "spyre")
    with torch.spyre.fallback_policy("error"):
        assert talk(example, decoder) == wanted
        assert talk(example, decoder, step=example.compiled_step()) == wanted
    assert len(wanted) > example.Config().window  # the cache went round
    assert not torch.spyre.fallback_report()


def test_no_step_of_the_committed_prompt_is_close(example: ModuleType) -> None:
    """What makes the test above one of the card, and not of rounding."""
    margins = []

    def step(decoder: Any, tokens: torch.Tensor, cache: Any, warmth: float) -> torch.Tensor:
        best = decoder(tokens, cache)[:, -1].topk(2)
        margins.append((best.values[0, 0] - best.values[0, 1]).item())
        return best.indices[:, :1]

    assert len(talk(example, example.load(CHECKPOINT), step=step)) == len(margins) == LENGTH
    assert min(margins) > 1e-3


@pytest.mark.parametrize("device", ["cpu", "spyre"])
def test_what_was_read_at_once_or_token_by_token_is_the_same(
    example: ModuleType, device: str
) -> None:
    decoder = untrained(example, device, layers=2)
    tokens = torch.randint(96, (2, 16)).to(device)
    with torch.no_grad():
        at_once = decoder(tokens)
        cache = example.Cache(decoder.config, 2, device)
        parts = [decoder(tokens[:, a:b], cache) for a, b in pairwise((0, 5, 6, 7, 13, 16))]
    torch.testing.assert_close(torch.cat(parts, 1), at_once, rtol=1e-4, atol=1e-4)


def test_a_token_sees_the_last_ones_of_the_window_and_no_others(example: ModuleType) -> None:
    """One layer, because what a token sees in another layer has itself seen earlier ones."""
    decoder = untrained(example, "spyre")
    tokens = torch.randint(96, (1, 43)).to("spyre")
    with torch.no_grad():
        cache = example.Cache(decoder.config, device="spyre")
        for token in tokens.split(1, 1):
            last = decoder(token, cache)
        at_once = decoder(tokens[:, -16:])
    torch.testing.assert_close(last[:, -1], at_once[:, -1], rtol=1e-4, atol=1e-4)


def test_checkpoints_go_from_device_to_device(example: ModuleType, tmp_path: Path) -> None:
    card = example.load(CHECKPOINT, "spyre:1")
    example.save(card, tmp_path / "from_card.pt")
    host = example.load(tmp_path / "from_card.pt")
    example.save(host, tmp_path / "from_host.pt")
    again = example.load(tmp_path / "from_host.pt", "spyre")
    committed = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
    assert again.config == card.config == example.Config(**committed["config"])
    for name, weight in committed["weights"].items():
        for decoder, device in ((card, "spyre:1"), (host, "cpu"), (again, "spyre:0")):
            mine = decoder.state_dict()[name]
            assert str(mine.device) == device
            assert torch.equal(mine.cpu(), weight.float())
    assert CHECKPOINT.stat().st_size < 550_000


def test_what_is_sampled_is_a_function_of_the_seed(example: ModuleType) -> None:
    decoder = example.load(CHECKPOINT, "spyre")
    for step in (example.step, example.compiled_step()):
        said = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            said.append(talk(example, decoder, 40, temperature=0.8, step=step))
        assert said[0] == said[1] != said[2]
    assert not torch.spyre.fallback_report()


def test_nothing_is_compiled_after_the_second_token_and_memory_does_not_grow(
    example: ModuleType,
) -> None:
    decoder = untrained(example, "spyre")
    said = example.generate(decoder, "abc", 1_000, step=example.compiled_step())
    assert len(list(islice(said, 2))) == 2
    before, graphs = torch.accelerator.memory_allocated(), _graphs()
    with torch.compiler.set_stance("fail_on_recompile"):
        assert len(list(islice(said, 997))) == 997
        assert torch.accelerator.memory_allocated() == before
    assert _graphs() == graphs


def test_no_number_that_changes_from_token_to_token_is_one_of_pythons(example: ModuleType) -> None:
    """Dynamo makes a symbol of such a number; with sizes fixed it compiles for each value."""
    decoder = untrained(example, "spyre")
    step = torch.compile(example.step, fullgraph=True, dynamic=False)
    said = example.generate(decoder, "abc", 42, step=step)
    assert len(list(islice(said, 2))) == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        assert len(list(islice(said, 40))) == 40


def test_token_by_token_nothing_is_compiled_after_the_second(example: ModuleType) -> None:
    decoder = untrained(example, "spyre")
    said = example.generate(decoder, "abc", 100)
    assert len(list(islice(said, 2))) == 2
    before = torch.accelerator.memory_allocated()
    programs = torch.spyre.eager_cache().compiled
    assert len(list(islice(said, 97))) == 97
    assert torch.spyre.eager_cache().compiled == programs
    assert torch.accelerator.memory_allocated() == before


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_training_lowers_the_loss_as_on_the_cpu(example: ModuleType) -> None:
    with torch.spyre.fallback_policy("error"):
        _, card = example.train("spyre", 12, small(example))
    _, host = example.train("cpu", 12, small(example))
    assert card == pytest.approx(host, rel=1e-3)
    assert card[-1] < card[0] - 0.5


def test_the_example_trains_and_talks(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.pt"
    monkeypatch.setattr(sys, "argv", ["decoder.py", "--steps", "1", "--length", "5"])
    sys.argv += ["--save", str(saved), "--device", "cpu"]
    example.main()
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(example.PROMPT)
    monkeypatch.setattr(sys, "argv", ["decoder.py", "--checkpoint", str(saved), "--length", "5"])
    example.main()
    assert capsys.readouterr().out == f"{said}\nno fallbacks\n"


def test_text_is_numbers_even_when_there_is_none(example: ModuleType) -> None:
    assert example.encode("").dtype == example.encode("a").dtype == torch.int64
    assert example.encode("日本").shape == example.encode("").shape == (1, 0)
    assert torch.equal(example.encode("日a“本"), example.encode('a"'))


def test_a_prompt_has_at_least_one_character(example: ModuleType) -> None:
    with pytest.raises(ValueError, match="prompt '日本' has no character that the decoder knows"):
        next(example.generate(untrained(example, "spyre"), "日本", 1))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--prompt", ""], "prompt '' has no character that the decoder knows"),
        (["--device", "spyre:7"], "--device spyre:7: "),
        (["--device", "nonsense"], "--device nonsense: "),
        (["--length", "-1"], "--length -1: must be at least 0"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--sample", "-1"], "--sample -1.0: must be finite and at least 0"),
        (["--sample", "nan"], "--sample nan: must be finite and at least 0"),
        (["--checkpoint", "{}/none.pt"], "none.pt: No such file or directory"),
        (["--checkpoint", "{}/text.pt"], "text.pt is no checkpoint of this decoder: "),
        (["--checkpoint", "{}/cut.pt"], "cut.pt is no checkpoint of this decoder: "),
        (["--checkpoint", "{}/other.pt"], "other.pt is no checkpoint of this decoder: "),
        (["--save", "{}/none/saved.pt"], "none is no directory to save to"),
    ],
)
def test_a_flag_that_cannot_be_is_refused_in_a_line_and_before_any_training(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    tmp_path: Path,
    flags: list[str],
    said: str,
) -> None:
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "cut.pt").write_bytes(CHECKPOINT.read_bytes()[:200_000])
    torch.save({"weights": {}}, tmp_path / "other.pt")
    monkeypatch.setattr(example, "train", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr(sys, "argv", ["decoder.py", *(f.format(tmp_path) for f in flags)])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    heard = capsys.readouterr()
    assert (stopped.value.code, heard.out) == (2, "")
    assert said in heard.err.splitlines()[-1]
