"""Second process on the same device. Arguments: the shared file, and its sizes.

On the line "N" it makes N handles of one granule each, on "import PATH" it imports what PATH has
exported. It answers with the number of free granules. The end of its standard input ends it.
"""

from __future__ import annotations

import os
import sys

from tests.vmm.libcuda import StandIn


def main() -> None:
    path, total, granule = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    standin = StandIn.load()
    standin.reset(total, granule)
    standin.share(path)
    from tests.vmm.libcuda import shorthand as short

    short.start()
    held: list[int] = []
    for line in sys.stdin:
        word, _, exported = line.strip().partition(" ")
        while held:
            short.ok(short.cuda.cuMemRelease(held.pop()))
        if exported:
            fd = os.open(exported, os.O_RDWR)
            held.append(int(short.ok(short.cuda.cuMemImportFromShareableHandle(fd, short.FD))))
            os.close(fd)
        else:
            held += [short.create(granule) for _ in range(int(word))]
        print(short.ok(short.cuda.cuMemGetInfo())[0] // granule, flush=True)


if __name__ == "__main__":
    main()
