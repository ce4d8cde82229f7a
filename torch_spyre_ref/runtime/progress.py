"""How far a queue is, and how the host waits for it.

The host learns of an end only by asking: each question moves the clock. Waiting moves it to the
awaited end. Whoever waits for an operation hears whether it was done; whoever only needs to know
that memory is free does not.
"""

from __future__ import annotations

from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.runtime.errors import QueueError
from torch_spyre_ref.runtime.failures import Failures
from torch_spyre_ref.runtime.sanitizer import Sanitizer


class Progress:
    """The operations of queue ``name`` by ticket: they are over in order, well or not.

    A question costs the host ``query_time`` virtual ns.
    """

    def __init__(self, name: str, clock: Clock, sanitizer: Sanitizer, query_time: int) -> None:
        self.name, self.failures = name, Failures(name)
        self._clock, self._sanitizer, self._query_time = clock, sanitizer, query_time
        self._last = self._done = 0

    @property
    def clock(self) -> Clock:
        """Its card's clock; ``with queue.clock:`` nobody comes between what is enqueued."""
        return self._clock

    @property
    def done(self) -> int:
        """The last operation that is over, as far as time has come."""
        return self._done

    @property
    def last(self) -> int:
        """The last operation that was submitted."""
        return self._last

    def wait(self, ticket: int) -> None:
        """Hold the host until operation ``ticket`` of this queue is complete.

        Raises when it failed or was dropped: the queue's error itself the first time, a
        ``QueueError`` after that.
        """
        self.settle(ticket)
        try:
            self.failures.require(ticket)
        except QueueError:
            self._deliver()
            raise

    def synchronize(self) -> None:
        """Hold the host until the queue is empty; then raise its error, if it was not raised."""
        self.settle()
        self._deliver()

    def query(self) -> bool:
        """Whether all that was submitted is complete. Raises as ``synchronize`` does."""
        done = self.completed(self._last)
        self._deliver()
        return done

    def completed(self, ticket: int) -> bool:
        """Whether operation ``ticket`` is over, well or not: it touches memory no more."""
        if ticket > self._last:
            self._refuse_ticket(ticket)
        with self._clock:
            self._clock.advance(self._clock.now + self._query_time)
            return self.is_over(ticket)

    def is_over(self, ticket: int) -> bool:
        """Whether operation ``ticket`` is known to be over, as far as time has come."""
        over = ticket <= self._done
        if over and self._sanitizer.on:
            self._tell(ticket)
        return over

    def settle(self, ticket: int | None = None) -> None:
        """Hold the host until operation ``ticket``, by default the last one, is over, well or not.

        Raises no error of the queue: for those who only need to know that host memory is free.
        """
        clock = self._clock
        until = self._last if ticket is None else ticket
        if until > self._last:
            self._refuse_ticket(until)
        with clock:
            clock.advance(clock.now + self._query_time)
            if until > self._done:
                self._run_to(until)
        # Ctrl-C came and the program's own handler did not raise: go on.
        while until > self._done:
            with clock:
                self._run_to(until)
        if self._sanitizer.on:
            self.is_over(until)

    def _tell(self, ticket: int) -> None:
        """The sanitizer is on, and the host knows that operation ``ticket`` is over."""
        raise NotImplementedError

    def _refuse_ticket(self, ticket: int) -> None:
        raise ValueError(
            f"queue {self.name} was asked for operation {ticket}, but its last one is "
            f"{self._last}; a ticket is good only for the queue that gave it"
        )

    def _run_to(self, ticket: int) -> None:
        clock = self._clock
        while ticket > self._done:
            clock.step()
            if UNDISTURBED.interrupted:
                break
        clock.advance(clock.now)

    def _deliver(self) -> None:
        with self._clock:
            self.failures.deliver()
