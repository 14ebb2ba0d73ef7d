"""Second process in the test of shared memory. Argument: the file descriptor of a socket.

It receives a handle's file descriptor and its size, answers with the memory's first bytes, and
overwrites them. On each further message it reads them again. The message "release" ends it; the
answer has the number of file descriptors and mappings of the memory in this process before and
after.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from tests.vmm.libcuda import StandIn

FROM_PARENT, FROM_CHILD = b"from the parent", b"from the child!"


def traces(inode: int) -> int:
    """Number of file descriptors and mappings of this process that keep a memory file alive."""
    fds = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the folder
            fds += fd.stat().st_ino == inode
    lines = Path("/proc/self/maps").read_text().splitlines()
    maps = [line.split() for line in lines if "mirage-stand-in" in line]
    return fds + sum(int(fields[4]) == inode for fields in maps)


def main() -> None:
    standin = StandIn.load()
    from tests.vmm.libcuda import shorthand as short

    cuda, ok = short.cuda, short.ok
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        message, fds, _, _ = socket.recv_fds(parent, 64, 1)
        nbytes, inode = int(message), os.fstat(fds[0]).st_ino
        standin.reset(granularity=nbytes)
        short.start()
        handle = int(ok(cuda.cuMemImportFromShareableHandle(fds[0], short.FD)))
        os.close(fds[0])
        address = short.reserve(nbytes)
        short.map_at(address, nbytes, handle)
        parent.send(ctypes.string_at(address, len(FROM_PARENT)))
        ctypes.memmove(address, FROM_CHILD, len(FROM_CHILD))
        while parent.recv(64) != b"release":
            parent.send(ctypes.string_at(address, len(FROM_CHILD)))
        held = traces(inode)
        short.unmap_and_free(address, nbytes, handle)
        parent.send(f"{held} then {traces(inode)}".encode())


if __name__ == "__main__":
    main()
