"""The interpreter's end, with whatever may still live or run: exit status 0 and not a word."""

from __future__ import annotations

from tests.conftest import Run


def test_exit_with_live_tensors_everywhere(run_python: Run) -> None:
    run_python(
        """
        import atexit, builtins, sys, threading
        import torch

        kept = torch.ones(100, device="spyre")
        torch.kept = torch.ones(100, device="spyre:1").pow(2)
        sys.kept = kept.view(10, 10).t()
        builtins.kept = torch.ones(5).pin_memory()
        cycle = [torch.ones(3, device="spyre")]
        cycle.append(cycle)
        local = threading.local()
        local.kept = torch.ones(3, device="spyre")
        event = torch.accelerator.current_stream().record_event()
        flying = torch.empty(1 << 20, device="spyre").copy_(torch.ones(1 << 20).pin_memory(), True)
        weight = torch.ones(3, device="spyre", requires_grad=True)
        graph = (weight * kept[:3]).exp()
        graph.sum().backward()
        module = torch.nn.Linear(3, 3).to("spyre")
        generator = torch.Generator("spyre")
        atexit.register(lambda: print(kept.sum().item()))

        class Late:
            def __del__(self):
                self.tensor = None

        late = Late()
        late.tensor = torch.ones(3, device="spyre")
        """
    )


def test_exit_right_after_a_backward_pass(run_python: Run) -> None:
    """An autograd thread has its graph still to let go of, and must get the GIL for that."""
    run_python(
        """
        import os, sys, torch
        if hasattr(os, "sched_setaffinity"):  # on one core the end begins first, nearly always
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        sys.setswitchinterval(60)
        weight = torch.ones(3, device="spyre", requires_grad=True)
        (weight * 2).sum().backward()
        """
    )


def test_exit_with_a_daemon_thread_inside_a_python_kernel(run_python: Run) -> None:
    run_python(
        """
        import threading, time
        import torch

        started = threading.Barrier(5)

        def work(number):
            device = f"spyre:{number % 2}"
            x = torch.ones(200, device=device)
            started.wait()
            while True:
                y = x.cpu().to(device) if number < 2 else x.clone().add_(1)
                del y

        for number in range(4):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        started.wait()
        time.sleep(0.05)
        """
    )


def test_exit_by_an_exception_keeps_the_exception(run_python: Run) -> None:
    run_python(
        """
        import torch
        kept = torch.ones(2, 3, device="spyre")
        kept @ (kept + 1)
        """,
        status=1,
        stderr="mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
    )


def test_the_card_is_not_used_after_the_end(run_python: Run) -> None:
    """A handler that was registered before the package runs after it: refused, and no crash."""
    run_python(
        """
        import atexit

        def too_late():
            try:
                torch.ones(3, device="spyre")
            except RuntimeError as error:
                print(error)

        atexit.register(too_late)
        import torch
        torch.ones(3, device="spyre")
        """
    )
