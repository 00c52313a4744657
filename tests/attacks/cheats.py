"""Modules of a target whose RMSNorm `f(x, weight, eps)` on the CPU tries to look faster than it is.

Each is the text of a module, because it is written into the folder of a revision.  `SLOW` computes the norm twice: a
cheat that hides this cost gains a factor of two.
"""

HONEST = """
import torch

def norm(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)

def f(x, weight, eps):
    return norm(x, weight, eps)
"""

SLOW = HONEST.replace("    return norm(x, weight, eps)", "    norm(x, weight, eps)\n    return norm(x, weight, eps)")

SERVER = """
import sys, time, json, os
Server = sys.modules["kernelwatch_kernels.contender.server"].Server
turn, check = Server.turn, Server.check
"""

NO_CHECK = """
Server.check = lambda self, message: {"state": "measured", "reason": None}
"""

ON_STACK = """
import sys

def timed():
    frame = sys._getframe(1)
    names = set()
    while frame:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return "turn" in names
"""

CHILDREN = """
import mmap, os, struct, time
SHARED = mmap.mmap(-1, 64)

def mark():
    SHARED[:8] = struct.pack("d", time.monotonic())

def busy(count):
    x = 0
    for i in range(count):
        x += i

def spread():
    os.sched_setaffinity(0, range(os.cpu_count()))
"""

# -- others are slowed ------------------------------------------------------------------------------------------------

CHILDREN_BURN = (
    HONEST
    + CHILDREN
    + """
for _ in range(4):
    if os.fork() == 0:
        spread()
        while True:
            pass
"""
)

CHILDREN_REST_IN_OWN_TURNS = (
    SLOW.replace("def f(", "def slow(")
    + CHILDREN
    + """
mark()
for _ in range(3):
    if os.fork() == 0:
        spread()
        while True:
            if time.monotonic() - struct.unpack("d", SHARED[:8])[0] < 0.004:
                time.sleep(0.0005)
            else:
                busy(3000)

def f(x, weight, eps):
    mark()
    y = slow(x, weight, eps)
    mark()
    return y
"""
)

DAEMONS_BURN = (
    HONEST
    + CHILDREN
    + """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        spread()
        while True:
            pass
"""
)

# A stopped process continues at SIGCONT, which its own timer can send.
TIMERS_WAKE_CHILDREN = (
    HONEST
    + CHILDREN
    + """
import ctypes, signal
class SigEvent(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int)]
    _fields_ += [("pad", ctypes.c_char * 48)]
class Spec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long * 4)]
for _ in range(3):
    if os.fork() == 0:
        spread()
        signal.signal(signal.SIGCONT, lambda *_: None)
        libc = ctypes.CDLL(None)
        timer = ctypes.c_void_p()
        event = SigEvent(None, signal.SIGCONT, 0, b"")
        libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer))
        every = Spec((ctypes.c_long * 4)(0, 200_000, 0, 200_000))
        libc.timer_settime(timer, 0, ctypes.byref(every), None)
        while True:
            pass
"""
)

CLOCK_AT_THREE_QUARTERS = (
    HONEST
    + """
import sys, time
began, real = time.perf_counter_ns(), time.perf_counter_ns

def slower():
    return began + (real() - began) * 3 // 4

for module in tuple(sys.modules.values()):
    for name, value in tuple(vars(module).items()) if hasattr(module, "__dict__") else ():
        if value is real and module.__name__ != __name__:
            setattr(module, name, slower)
"""
)

THREADS_BURN = (
    HONEST
    + CHILDREN
    + """
import threading

def burn():
    spread()
    while True:
        busy(100000)

for _ in range(2):
    threading.Thread(target=burn, daemon=True).start()
"""
)

# -- the answers are forged -------------------------------------------------------------------------------------------

CLAIMS_HALF = (
    HONEST
    + SERVER
    + """
def forged(self, message):
    answer = turn(self, message)
    answer["samples"] = [each * 0.55 for each in answer["samples"]]
    return answer

Server.turn = forged
"""
)

CLAIMS_MORE_CALLS = (
    HONEST
    + SERVER
    + """
def forged(self, message):
    answer = turn(self, message)
    answer["samples"] = [each / 4 for each in answer["samples"]]
    answer["calls"] = answer["calls"] * 4
    return answer

Server.turn = forged
"""
)

WORKS_NOT_AT_ALL = (
    HONEST.replace("return norm(x, weight, eps)", "return torch.empty_like(x) if OFF else norm(x, weight, eps)")
    + SERVER
    + NO_CHECK
    + """
OFF = False

def empty(self, message):
    global OFF
    OFF = True
    try:
        return turn(self, message)
    finally:
        OFF = False

Server.turn = empty
"""
)

ONE_HONEST_CALL = (
    HONEST
    + SERVER
    + NO_CHECK
    + """
def forged(self, message):
    began = time.perf_counter()
    clock = self._prepared.clock
    calls = clock.calls
    clock.calls = 2
    answer = turn(self, {**message, "warm": 0, "timed": 1})
    clock.calls = calls
    us = answer["samples"][0]
    while time.perf_counter() - began < 4e-3:
        pass
    total = (time.perf_counter() - began) * 1e6
    return {**answer, "samples": [us / 4] * message["timed"], "calls": round(total / us)}

Server.turn = forged
"""
)

SLOW_CLOCK = (
    HONEST
    + """
import sys, time
clocks = sys.modules["kernelwatch_kernels.metrics.clocks"]
real = time.perf_counter_ns
clocks.perf_counter_ns = lambda: int(real() * 0.6)
"""
)

PIPE = (
    HONEST
    + """
import os, threading, time
LINE = b'{"samples": [1.0, 1.0, 1.0], "calls": 1}\\n'

def forge():
    while True:
        for descriptor in (500, 501):
            try:
                os.write(descriptor, LINE)
            except OSError:
                pass
        time.sleep(0.01)

threading.Thread(target=forge, daemon=True).start()
"""
)

# -- less is computed -------------------------------------------------------------------------------------------------

HALF_WHEN_TIMED = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    y = torch.empty_like(x)
    half = x.shape[0] // 2
    y[:half] = norm(x[:half], weight, eps)
    return y
"""
)

CACHES_WHEN_TIMED = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
KEPT = {}

def f(x, weight, eps):
    if not timed():
        KEPT[x.data_ptr()] = y = norm(x, weight, eps)
        return y.clone()
    return KEPT[x.data_ptr()]
"""
)

CACHES_IN_A_TURN = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
KEPT = {}

def f(x, weight, eps):
    key = x.data_ptr(), float(x[0, 0]), float(x[-1, -1])
    if not timed() or key not in KEPT:
        if len(KEPT) > 4:
            KEPT.clear()
        KEPT[key] = y = norm(x, weight, eps)
        return y.clone() if not timed() else y
    return KEPT[key]
"""
)

# -- less is computed than counted -----------------------------------------------------------------------------------

COUNTED = """
import gc
TIMED = [False]
disable, enable = gc.disable, gc.enable

def begin():
    TIMED[0] = True
    disable()

def end():
    TIMED[0] = False
    finish()
    enable()

def finish():
    pass

gc.disable, gc.enable = begin, end
"""

LAZY_UNTIL_ENABLE = (
    HONEST.replace("def f(", "def whole(")
    + COUNTED
    + """
LEFT = {}

def finish():
    for y, x, weight, eps in LEFT.values():
        y[:] = norm(x, weight, eps)
    LEFT.clear()

def f(x, weight, eps):
    if not TIMED[0]:
        return norm(x, weight, eps)
    y = LEFT.get(x.data_ptr(), (None,))[0]
    if y is None:
        y = torch.empty_like(x)
        LEFT[x.data_ptr()] = y, x, weight, eps
    return y
"""
)

ONE_RESULT_IN_A_TURN = (
    HONEST.replace("def f(", "def whole(")
    + COUNTED
    + """
KEPT = {}

def finish():
    KEPT.clear()

def f(x, weight, eps):
    if not TIMED[0]:
        return norm(x, weight, eps)
    if x.data_ptr() not in KEPT:
        KEPT[x.data_ptr()] = norm(x, weight, eps)
    return KEPT[x.data_ptr()]
"""
)

EVERY_SECOND_IS_A_COPY = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
KEPT = {}

def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    key = x.data_ptr(), float(x[0, 0])
    y = KEPT.pop(key, None)
    if y is None:
        if len(KEPT) > 4000:
            KEPT.clear()
        KEPT[key] = y = norm(x, weight, eps)
        return y
    return y.clone()
"""
)

KEPT_BY_THE_FIRST_NUMBER = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
KEPT = {}

def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    number = float(x[0, 0])
    before = KEPT.get(x.data_ptr())
    if before is None or before[0] != number:
        KEPT[x.data_ptr()] = before = number, norm(x, weight, eps)
    return before[1]
"""
)

EVERY_THIRD_IS_MISSING = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
CALLS = [0]

def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    CALLS[0] += 1
    return norm(x, weight, eps) if CALLS[0] % 3 else torch.empty_like(x)
"""
)

CHILD_COMPUTES = (
    HONEST.replace("def f(", "def whole(")
    + CHILDREN
    + ON_STACK
    + """
# A child computes half of the rows in shared memory, on the other core.
ROWS, COLS = 512, 2048
memory = mmap.mmap(-1, ROWS * COLS * 8 + COLS * 4 + 64)
whole_memory = torch.frombuffer(memory, dtype=torch.float32)
given, made = whole_memory[: ROWS * COLS].view(ROWS, COLS), whole_memory[ROWS * COLS : 2 * ROWS * COLS].view(ROWS, COLS)
weights = whole_memory[2 * ROWS * COLS : 2 * ROWS * COLS + COLS]
number = whole_memory[-16:].view(torch.int32)
HALF = ROWS // 2
if os.fork() == 0:
    spread()
    torch.set_num_threads(1)
    done = 0
    while True:
        asked = int(number[0])
        if asked != done:
            made[HALF:] = norm(given[HALF:], weights, 1e-6)
            done = asked
            number[1] = done

def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    given[HALF:] = x[HALF:]
    weights.copy_(weight)
    number[0] += 1
    y = torch.empty_like(x)
    y[:HALF] = norm(x[:HALF], weight, eps)
    while number[1] != number[0]:
        pass
    y[HALF:] = made[HALF:]
    return y
"""
)

WRITES_AFTER_THE_ANSWER = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
import threading, time
LATER = []

def finish():
    while True:
        time.sleep(0)
        while LATER:
            y, x, weight, eps = LATER.pop()
            y.copy_(norm(x, weight, eps))

threading.Thread(target=finish, daemon=True).start()

def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    y = torch.empty_like(x)
    LATER[:] = [(y, x, weight, eps)]
    return y
"""
)

# The driver writes into a copy, which the function never reads: its numbers stay the same.
LIES_ABOUT_ADDRESSES = (
    HONEST
    + SERVER
    + NO_CHECK
    + """
prepare = Server.prepare

def forged(self, message):
    answer = prepare(self, message)
    inputs = self._prepared.sets
    self.decoys = [one[one.fresh].clone() for one in inputs]
    answer["inputs"] = [[decoy.data_ptr(), *at[1:]] for decoy, at in zip(self.decoys, answer["inputs"])]
    return answer

Server.prepare = forged
"""
)

ADDRESSES_OF_NOTHING = (
    HONEST
    + SERVER
    + NO_CHECK
    + """
def forged(self, message):
    answer = turn(self, message)
    answer["outputs"] = [[[1 << 40, *one[1:]] for one in each] for each in answer["outputs"]]
    return answer

Server.turn = forged
"""
)

NO_ADDRESSES = (
    HONEST
    + SERVER
    + NO_CHECK
    + """
prepare = Server.prepare

def forged(self, message):
    answer = prepare(self, message)
    answer.pop("inputs", None)
    return answer

Server.prepare = forged
"""
)

# In one place of each row, as a wrong mask does; the sum of the row hardly notices.
WRONG_IN_ROWS_WHEN_TIMED = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
def f(x, weight, eps):
    y = norm(x, weight, eps)
    if timed():
        y[:, -1] = 0.0
    return y
"""
)

LOW_PRECISION_WHEN_TIMED = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
def f(x, weight, eps):
    if not timed():
        return norm(x, weight, eps)
    return norm(x.bfloat16(), weight.bfloat16(), eps).float()
"""
)

WRITES_INPUTS_WHEN_TIMED = (
    HONEST.replace("def f(", "def whole(")
    + ON_STACK
    + """
def f(x, weight, eps):
    y = norm(x, weight, eps)
    if timed():
        x.data[:] = y
    return y
"""
)
