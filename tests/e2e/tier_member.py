"""An engine's end of the host pool as a process of its own, told what to do line by line.

python tier_member.py SOCKET TENANT BLOCK_BYTES    then Python expressions on stdin, one a line;
each answer is one line. `pool`, `store`, `half`, `reads` and `hold` are known to them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Found, Key, Member

socket, tenant, block_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
pool = PoolClient(socket, Member(tenant, b"weights", block_bytes), answer_s=5.0)
PATIENCE_S = 10.0


def keys(*numbers: int) -> list[Key]:
    return [Key(b"%d" % number) for number in numbers]


def content(key: Key) -> bytes:
    return (key + b"|") * (block_bytes // (len(key) + 1))


def half(*numbers: int) -> list[int]:
    """Reserve, and write half of it; the numbers that found room."""
    places = pool.reserve(keys(*numbers))
    for key, place in places.items():
        text = content(key)[: block_bytes // 2]
        pool.memory(place.medium)[place.offset : place.offset + len(text)] = text
    return sorted(map(int, places))


def store(*numbers: int) -> list[int]:
    places = pool.reserve(keys(*numbers))
    for key, place in places.items():
        text = content(key)
        pool.memory(place.medium)[place.offset : place.offset + len(text)] = text
    pool.commit(places)
    return sorted(map(int, places))


def hold(request: str, *numbers: int) -> dict[int, str]:
    """Seek, and what comes of it; a block that is READY must be right."""
    wanted = keys(*numbers)
    pool.seek(request, wanted)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if Found.UNKNOWN not in (states := [pool.found(request, key) for key in wanted]):
            break
        time.sleep(0.001)
    for key, state in zip(wanted, states, strict=True):
        if state is Found.READY:
            (place,) = pool.places(request, [key])
            text = content(key)
            there = pool.memory(place.medium)[place.offset : place.offset + len(text)]
            assert bytes(there) == text, (key, bytes(there)[:20])
    return {int(key): state.value for key, state in zip(wanted, states, strict=True)}


def reads(*numbers: int) -> dict[int, str]:
    found = hold("reads", *numbers)
    pool.leave("reads")
    return found


print("ready", flush=True)
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
