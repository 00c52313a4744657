"""Judge the outputs of the turns themselves, by a process that runs no code of the target.  Torch-free.

Before each turn the driver writes other numbers into the contender's inputs, while all its processes are frozen.  The
answer to the turn says where outputs are that one of its samples left.  The contender is frozen again, and only then
the driver draws an output and some of its rows, and reads them.  The judge compares them with float64 of the numbers
that the driver wrote.
"""

import base64
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..cases import BY_ROW_OUT, DTYPE_BYTES, EACH_ROW, OTHER_BYTES, Case
from . import protocol
from .channel import ContenderLost
from .pool import Connection, Contender, reason_of
from .sizes import SETS_ON_CPU

DRAWN = 4  # outputs of a turn, each of another input set, so that a call that a kernel skips is drawn soon
MAX_ROWS, MAX_BYTES = 4, 1 << 15  # of an output that are drawn in a turn; at least one row
MAX_STRIDE = 1 << 40
BYTES = DTYPE_BYTES | OTHER_BYTES
AT_ONCE = 16  # draws in one request
DURING = "in its turns, with other numbers in its inputs: "

_random = random.SystemRandom()


class Judge:
    """A process of its own for all trials of a session, started with the first one that needs it.

    `trouble` says why outputs are not judged, if they are not.
    """

    def __init__(self, contender: Contender, start_limit_s: float = 180, limit_s: float = 120) -> None:
        if not contender.trusted:
            raise ValueError(f"{contender.label} runs code of the target")
        self._contender = contender
        self._start_limit_s = start_limit_s
        self._limit_s = limit_s
        self._channel: Connection | None = None
        self._is_ready = False
        self.trouble: str | None = None

    def begin(self) -> None:
        """Start the process, so that it imports what it needs at the same time as the contenders."""
        if self.trouble is not None or self._channel is not None:
            return
        try:
            self._channel = self._contender.start()
        except OSError as trouble:
            self._give_up(trouble)

    def examination(self, case: Case, seed: int, keep_going: Callable[[], None]) -> "Examination | None":
        """None if the judge does not work here; `trouble` says why."""
        self.begin()
        if self._channel is None:
            return None
        try:
            if not self._is_ready:
                request = protocol.start(self._contender.provider, "cpu", 1, None)
                self._require_ready(self._channel.ask(request, self._start_limit_s, keep_going))
                self._is_ready = True
            answer = self._channel.ask(protocol.judge(case, seed, secrets.randbits(62)), self._limit_s, keep_going)
            self._require_ready(answer)
            return Examination(case, self._channel, answer, lambda draws: self._ask(draws, keep_going))
        except (ContenderLost, OSError, _NotReady) as trouble:
            self._give_up(trouble)
            return None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _give_up(self, trouble: Exception) -> None:
        self.trouble = f"outputs of turns are not judged: {trouble}"
        self.close()

    def _require_ready(self, answer: Mapping[str, Any]) -> None:
        if answer.get("ready") is not True:
            raise _NotReady(reason_of(answer) or "the judge did not get ready")

    def _ask(self, draws: Sequence[Mapping[str, Any]], keep_going: Callable[[], None]) -> list[Any]:
        if self._channel is None:
            raise ContenderLost("the judge has ended")
        answer = self._channel.ask(protocol.verdicts(draws), self._limit_s, keep_going)
        found = answer.get("verdicts")
        if not isinstance(found, list) or len(found) != len(draws):
            raise ContenderLost(f"the judge failed: {reason_of(answer)}")
        return found


class _NotReady(Exception):
    """The judge cannot run here."""


@dataclass
class _Examined:
    """One contender at the case: where its inputs are, and what was drawn of its outputs."""

    inputs: list[list[int]]
    rounding: str  # the convention of its provider
    draws: list[dict[str, Any]] = field(default_factory=list)
    wrong: str | None = None


class Examination:
    """The turns of all contenders at one case."""

    def __init__(
        self,
        case: Case,
        judge: Connection,
        answer: Mapping[str, Any],
        ask: Callable[[Sequence[Mapping[str, Any]]], list[Any]],
    ) -> None:
        self._case = case
        self._judge = judge
        self._ask = ask
        self._pool_numbers = int(answer["pool_numbers"])
        # A copy, because to read the numbers of each turn from the judge took 5 ms for a case of 2 MiB (November).
        self._pool = memoryview(judge.read(int(answer["pool"]), self._pool_numbers * DTYPE_BYTES[case.dtype]))
        self._base: list[list[int]] = answer["inputs"]
        self._row_bytes = case.cols * DTYPE_BYTES[case.dtype]
        self._token_bytes = case.width * DTYPE_BYTES[case.dtype]  # which lie next to each other in an input
        self._columns = False
        self._offsets: list[int] = []
        self._numbers: list[memoryview] = []  # parts of the pool
        self._examined: dict[str, _Examined] = {}

    def add(self, label: str, inputs: object, rounding: str) -> str | None:
        """Take part, with the `inputs` of the answer to `prepare`.  Returns why not, if they are not valid."""
        count = len(inputs) if isinstance(inputs, list) else 0
        if not SETS_ON_CPU <= count <= len(self._base) or not _are_addresses(inputs, count):
            return "did not say where its inputs are"
        self._examined[label] = _Examined(inputs, rounding)  # type: ignore[arg-type]
        return None

    def draw_numbers(self, *, columns: bool = False, once: bool = False) -> None:
        """Draw the numbers of the next turns, in which sums over all rows are judged as well if `columns`.

        `once`: they are single passes over all input sets.
        """
        self._columns = columns
        most = self._pool_numbers - self._case.rows * self._case.cols
        size = DTYPE_BYTES[self._case.dtype]
        self._offsets = [_random.randint(0, most) for _ in self._base[: None if once else SETS_ON_CPU]]
        count = self._row_bytes * self._case.rows
        self._numbers = [self._pool[offset * size : offset * size + count] for offset in self._offsets]

    def give_numbers(self, label: str, connection: Connection) -> None:
        """Write the drawn numbers into the inputs of a frozen contender.  Raises OSError."""
        for at, numbers in zip(self._examined[label].inputs, self._numbers, strict=False):
            self._write(connection, at, numbers)

    def restore(self, label: str, connection: Connection) -> None:
        """Write the numbers of its preparation back, but for those that only single passes use.  Raises OSError."""
        for at, numbers in zip(self._examined[label].inputs, self._before, strict=False):
            self._write(connection, at, numbers)

    @cached_property
    def _before(self) -> list[bytearray]:
        """The numbers of the preparation."""
        found = []
        for base in self._base[:SETS_ON_CPU]:
            apart = [self._judge.read(base[0] + at * base[1], self._token_bytes) for at in self._tokens_apart(base)]
            found.append(bytearray().join(apart) or self._judge.read(base[0], self._row_bytes * self._case.rows))
        return found

    def take_outputs(self, label: str, connection: Connection, outputs: object) -> None:
        """Draw outputs of the last turn, and some of their rows."""
        one = self._examined[label]
        # Sums over all rows cost a float64 computation of all numbers, so they are drawn in one round of a case.
        sums = [name for name in self._case.outputs if name not in (*BY_ROW_OUT, *EACH_ROW)]
        names = sums if self._columns and sums else [name for name in self._case.outputs if name in BY_ROW_OUT]
        count = min(len(one.inputs), len(self._numbers))
        if not isinstance(outputs, list) or len(outputs) != count:
            one.wrong = one.wrong or "did not say where the outputs of its turn are"
            return
        for number in _random.sample(range(count), 1 if names is sums else min(DRAWN, count)):
            if one.wrong is None:
                self._take(one, connection, number, _random.choice(names), outputs[number])

    def _take(self, one: _Examined, connection: Connection, number: int, name: str, outputs: Any) -> None:
        """Read rows of an output of an input set, and see whether these rows of the input are still the drawn ones."""
        if not _are_addresses(outputs, len(self._case.outputs)):
            one.wrong = "did not say where the outputs of its turn are"
            return
        found_at = dict(zip(self._case.outputs, outputs, strict=True))
        address, stride, size = found_at[name]
        given_at = one.inputs[number]
        rows = self._drawn_rows() if name in BY_ROW_OUT else [0]
        dtype = self._dtype(name, size)
        try:
            data = b"".join(connection.read(address + row * stride, self._case.cols * size) for row in rows)
            # a vector is one row of its elements
            address, _, bytes_of_scale = found_at.get("scale", (0, 0, 0)) if name == "q" else (0, 0, 0)
            scale = b"".join(connection.read(address + row * bytes_of_scale, bytes_of_scale) for row in rows)
            same = all(
                connection.read(self._place(given_at, row), self._row_bytes)
                == bytes(self._numbers[number][row * self._row_bytes : (row + 1) * self._row_bytes])
                for row in (rows if name in BY_ROW_OUT else self._drawn_rows())
            )
        except OSError as error:
            one.wrong = f"the outputs of its turn cannot be read: {error}"
            return
        if dtype is None or not same:
            one.wrong = "changed its input" if dtype else f"{name} has elements of {size} bytes"
            return
        one.draws.append(
            {
                "set": number,
                "offset": self._offsets[number],
                "output": name,
                "rows": rows,
                "dtype": dtype,
                "data": base64.b64encode(data).decode(),
                "rounding": one.rounding,
                "scale": base64.b64encode(scale).decode(),
            }
        )

    def verdicts(self) -> dict[str, str]:
        """Why the outputs of contenders are wrong; those whose outputs are right are left out.

        Raises ContenderLost if the judge failed.
        """
        found = {label: one.wrong for label, one in self._examined.items() if one.wrong}
        draws = [(label, draw) for label, one in self._examined.items() for draw in one.draws]
        for first in range(0, len(draws), AT_ONCE):
            some = draws[first : first + AT_ONCE]
            for (label, _), reason in zip(some, self._ask([draw for _, draw in some]), strict=True):
                if reason:
                    found.setdefault(label, str(reason))
        return {label: DURING + reason for label, reason in found.items()}

    def _tokens_apart(self, at: Sequence[int]) -> range:
        return range(self._case.tokens if at[1] != self._token_bytes else 0)

    def _place(self, at: Sequence[int], row: int) -> int:
        """The address of a row of an input."""
        token, head = divmod(row, self._case.heads or 1)
        return at[0] + token * at[1] + head * self._row_bytes

    def _write(self, connection: Connection, at: Sequence[int], numbers: bytearray | memoryview) -> None:
        numbers = memoryview(numbers)
        if not self._tokens_apart(at):
            connection.write(at[0], numbers)
        for token in self._tokens_apart(at):  # what is between the tokens stays
            part = numbers[token * self._token_bytes : (token + 1) * self._token_bytes]
            connection.write(at[0] + token * at[1], part)

    def _drawn_rows(self) -> list[int]:
        count = min(self._case.rows, max(1, min(MAX_ROWS, MAX_BYTES // self._row_bytes)))
        return sorted(_random.sample(range(self._case.rows), count))

    def _dtype(self, name: str, size: int) -> str | None:
        """The dtype of an output with elements of this size; None if it may not have that."""
        return next((dtype for dtype in self._case.dtypes(name) if BYTES[dtype] == size), None)


def _are_addresses(value: object, count: int) -> bool:
    """`count` lists of an address, the bytes between rows, and those of an element."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(one, list) and len(one) == 3 for one in value)
        and all(type(number) is int and 0 <= number < 1 << 62 for one in value for number in one)
        and all(one[1] < MAX_STRIDE and one[2] in BYTES.values() for one in value)
    )
