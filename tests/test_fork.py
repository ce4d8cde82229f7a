"""Invariant 10, processes: fork, spawn, and DataLoader workers of both kinds."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Run


def test_fork_before_the_first_use_works_and_after_it_is_refused(run_python: Run) -> None:
    out = run_python(
        """
        import os, sys, torch

        def in_child(work):
            sys.stdout.flush()
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                return
            try:
                print(work())
            except RuntimeError as error:
                print(str(error).splitlines()[0])
            sys.stdout.flush()
            os._exit(0)

        in_child(lambda: torch.ones(2, device="spyre").add(1).tolist())
        print(torch.spyre.is_initialized())
        kept = torch.ones(2, device="spyre")
        host = torch.ones(2).pin_memory()
        in_child(lambda: torch.ones(2, device="spyre"))
        in_child(lambda: kept.cpu())
        in_child(lambda: kept.add(1))
        in_child(lambda: host.pin_memory() + torch.ones(2).pin_memory())
        in_child(lambda: torch.spyre._is_in_bad_fork())
        in_child(lambda: (torch.manual_seed(1), torch.rand(2).shape, host.add(1).tolist())[1:])
        in_child(lambda: torch.ones(2).is_pinned())
        in_child(lambda: torch.spyre.is_initialized())

        def drop():
            global kept
            del kept
            return "dropped"

        in_child(drop)
        print(kept.add(1).tolist())
        """,
        PYTHONWARNINGS=None,
    )
    refused = "Cannot use spyre in a forked subprocess"
    lines = out.splitlines()
    assert lines[:2] == ["[2.0, 2.0]", "False"]
    assert all(line.startswith(refused) for line in lines[2:6]), lines
    assert lines[6:] == [
        "True",
        "(torch.Size([2]), [2.0, 2.0])",
        "False",
        "False",
        "dropped",
        "[2.0, 2.0]",
    ]


LOADERS = """
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        value = torch.full((3,), float(index))
        if not torch.spyre._is_in_bad_fork():  # a worker that was spawned has cards of its own
            value = value.to("spyre:1").mul(2).cpu() / 2
        return value, index


def load(start_method, workers):
    loader = DataLoader(
        Squares(), 4, num_workers=workers, pin_memory=True, multiprocessing_context=start_method
    )
    total = 0.0
    for values, index in loader:
        assert values.is_pinned() and index.is_pinned()
        card = values.to("spyre:1", non_blocking=True)
        assert card.sum(1).cpu().equal(3.0 * index)
        total += card.sum().item()
    return total


if __name__ == "__main__":
    kept = torch.ones(2, device="spyre")
    print(load("fork", 2), load("spawn", 1), load(None, 0), kept.tolist())
"""


def test_a_loader_pins_what_workers_make_that_were_forked_or_spawned(
    run_python: Run, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"  # spawn wants a main module that can be imported
    script.write_text(LOADERS)
    out = run_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert out == "198.0 198.0 198.0 [1.0, 1.0]\n"


def test_streams_and_events_of_the_parent_are_refused_in_a_forked_child(run_python: Run) -> None:
    out = run_python(
        """
        import os, sys, torch

        stream, event, later = (
            torch.Stream("spyre"),
            torch.Event("spyre", enable_timing=True),
            torch.Event("spyre", enable_timing=True),
        )
        with stream:
            torch.ones(2, device="spyre")
        event.record(stream)
        later.record(stream)
        stream.synchronize()
        sys.stdout.flush()
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            for ask in (
                event.query,
                event.synchronize,
                lambda: event.elapsed_time(later),
                stream.query,
                stream.synchronize,
            ):
                try:
                    print("answered", ask())
                except RuntimeError as error:
                    print(str(error).partition(":")[0])
            sys.stdout.flush()
            os._exit(0)
        """,
        PYTHONWARNINGS=None,
    )
    assert out.splitlines() == ["Cannot use spyre in a forked subprocess"] * 5
