"""An engine's end of the host pool as a process of its own, told what to do line by line.

python tier_member.py SOCKET TENANT BLOCK_BYTES [DEVICE MEMORY]

Then Python expressions on stdin, one a line; each answer is one line. `pool`, `store`, `half`,
`reads` and `hold` are known to them. With the file and the bytes of shared devices over the
stand-in for libcuda, GPU 0 is its own, with pages of one block, and others lend.
"""

from __future__ import annotations

import ctypes
import sys
import time
from functools import partial
from pathlib import Path

from mirage.tiers.client import PoolClient
from mirage.tiers.contract import BlockPlace, Key, Lookup, Medium, Member

socket, tenant, block_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
pool = PoolClient(socket, Member(tenant, b"weights", block_bytes), answer_s=5.0)
PATIENCE_S = 10.0
borrower = None


if sys.argv[4:]:
    from mirage.tiers.lending.borrower import Borrower
    from tests.vmm.libcuda import StandIn

    standin = StandIn.load()
    standin.reset(int(sys.argv[5]), block_bytes)
    standin.flags(devices=2)
    standin.share(sys.argv[4])
    from vmm.cuda import CudaDriver
    from vmm.cuda_slab import Slab

    borrower = Borrower(pool.lenders(), partial(Slab.borrow, CudaDriver(tensors_on="cpu")))


def write(place: BlockPlace, text: bytes) -> None:
    if borrower is not None and place.medium is Medium.PEER:
        ctypes.memmove(borrower.use(place.offset), text, len(text))
        borrower.let_go(place.offset)
    else:
        pool.memory(place.medium)[place.offset : place.offset + len(text)] = text


def read(place: BlockPlace, nbytes: int) -> bytes:
    if borrower is not None and place.medium is Medium.PEER:
        there = ctypes.string_at(borrower.use(place.offset), nbytes)
        borrower.let_go(place.offset)
        return there
    return bytes(pool.memory(place.medium)[place.offset : place.offset + nbytes])


def keys(*numbers: int) -> list[Key]:
    return [Key(b"%d" % number) for number in numbers]


def content(key: Key) -> bytes:
    return (key + b"|") * (block_bytes // (len(key) + 1))


def half(*numbers: int) -> list[int]:
    """Reserve places and write only half of each block; return the numbers of the blocks that got a
    place.
    """
    places = pool.reserve(keys(*numbers))
    for key, place in places.items():
        write(place, content(key)[: block_bytes // 2])
    return sorted(map(int, places))


def store(*numbers: int) -> list[int]:
    places = pool.reserve(keys(*numbers))
    for key, place in places.items():
        write(place, content(key))
    pool.commit(places)
    return sorted(map(int, places))


def hold(request: str, *numbers: int) -> dict[int, str]:
    """Seek blocks, and return the state of each; a block that is READY must have the right content.

    The state is ``"gone"`` if the holder of the block's memory ended meanwhile.
    """
    wanted, gone = keys(*numbers), set[Key]()
    pool.seek(request, wanted)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if Lookup.UNKNOWN not in (states := [pool.found(request, key) for key in wanted]):
            break
        time.sleep(0.001)
    for key, state in zip(wanted, states, strict=True):
        if state is Lookup.READY:
            (place,) = pool.places(request, [key])
            text = content(key)
            try:
                there = read(place, len(text))
            except KeyError:
                gone.add(key)
                continue
            assert there == text, (key, there[:20])
    found = zip(wanted, states, strict=True)
    return {int(key): "gone" if key in gone else state.value for key, state in found}


def reads(*numbers: int) -> dict[int, str]:
    found = hold("reads", *numbers)
    pool.leave("reads")
    return found


print("ready", flush=True)
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
