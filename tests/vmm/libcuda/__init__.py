"""A strict stand-in for NVIDIA's driver library, so that cuda-python runs without a GPU.

`StandIn.load()` compiles it, once per state of its sources, and loads it under the name that
binding code asks for: from then on `cuda.bindings.driver` talks to it in this process. It
refuses what the real driver leaves undefined; `last_words()` then says why.

Device addresses are host addresses: tests may read them directly. Memory that is unmapped, or
that has no access set, faults.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import shutil
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

SONAME = "libcuda.so.1"
MIB = 1 << 20

_HERE = Path(__file__).parent
_FLAGS = ("-std=c11", "-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
_LINK = (f"-Wl,-soname,{SONAME}", "-pthread")
_TEXT_BYTES = 16384


class Unavailable(RuntimeError):
    """Error: the stand-in cannot be loaded in this process."""


class NoCompiler(Unavailable):
    """Error: the machine has no C compiler."""


class BuildFailed(Unavailable):
    """Error: the compiler refused the stand-in's sources."""


class RealDriverLoaded(Unavailable):
    """Error: NVIDIA's own library is loaded in this process already."""


class Refused(RuntimeError):
    """Error of a control that got invalid arguments, or was used in a forked child."""


class StandIn:
    """Controls of the stand-in: memory, faults, pace and counts. A process has one object of this
    class, which `load()` returns."""

    _loaded: StandIn | None = None
    _loading = threading.Lock()

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.standin_reset.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        library.standin_fail.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        library.standin_fault.argtypes = [ctypes.c_int]
        library.standin_pace.argtypes = [ctypes.c_double]
        library.standin_delay.argtypes = [ctypes.c_double]
        library.standin_flags.argtypes = [ctypes.c_int] * 4
        library.standin_share.argtypes = [ctypes.c_char_p]
        library.standin_used_bytes.restype = ctypes.c_longlong
        for name in ("calls", "leaks", "last_words"):
            self._function(name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    @classmethod
    def load(cls, folder: Path | None = None) -> StandIn:
        """Compile the stand-in below `folder` (default: the temporary folder), load it, and reset
        it.

        A second call returns the same object and resets nothing. Raises `NoCompiler`,
        `BuildFailed`, `RealDriverLoaded`.
        """
        with cls._loading:
            if cls._loaded is None:
                library = _ours_if_loaded()
                if library is None:
                    library = ctypes.CDLL(str(build(folder)), mode=ctypes.RTLD_GLOBAL)
                _allow_files(65536)
                cls._loaded = cls(library)
                cls._loaded.reset()
            return cls._loaded

    def reset(self, memory_bytes: int = 1024 * MIB, granularity: int = 2 * MIB) -> None:
        """Forget everything, end all streams, set every control to its default.

        `granularity` is a power of two, 64 KiB at least. A call that is waiting in another
        thread returns CUDA_ERROR_DEINITIALIZED; cuInit is needed again.
        """
        self._control("reset", memory_bytes, granularity)

    def share(self, path: str) -> None:
        """Until the next reset, let all processes that share the file `path` have the same devices.

        It must be called before there is any memory. `path` is an empty file at first, and every
        process must have reset to the same sizes. What a process has ends with the process, however
        it ends.
        """
        self._control("share", path.encode())

    def fail(self, nth: int, call: str | None = None, error: int = 2) -> None:
        """Let the `nth` call from now on (1 is the next) fail, of the function `call` or of any.

        It returns `error` and does nothing. Names are those of `cuda.bindings.driver`, such as
        "cuMemCreate". Several such orders may wait at once.
        """
        self._control("fail", nth, (call or "").encode(), int(error))

    def fault(self, error: int) -> None:
        """Let every call return `error` from now on, cuInit too; work queued on streams is dropped.

        A real driver does so in a process whose context had a fault, and in all processes if the
        device had one. 0 makes the device well again.
        """
        self._control("fault", int(error))

    def calls(self) -> dict[str, int]:
        """Number of calls of each function since the reset; refused calls count too."""
        return self._counts("calls")

    def leaks(self) -> dict[str, int]:
        """Number of objects that exist: handles, mappings, reservations, allocations (of
        cuMemAlloc), streams, events, registrations, contexts (retained primary contexts).
        """
        return self._counts("leaks")

    @property
    def used_bytes(self) -> int:
        """Bytes of handles and allocations on all devices."""
        return int(self._control("used_bytes"))

    def pace(self, bytes_per_s: float) -> None:
        """Set the speed of copies on every stream, also of running ones; 0 is unlimited."""
        self._control("pace", bytes_per_s)

    def delay(self, seconds: float) -> None:
        """Hold each copy, fill and record back for `seconds` before it starts.

        With 0, all that is being held starts at once, so a long delay can be used as a gate.
        """
        self._control("delay", seconds)

    def peers(self, able: bool) -> None:
        """Set whether devices can reach each other's memory; they can by default."""
        self._control("peers", int(able))

    def version(self, number: int) -> None:
        """Set the answer of `cuDriverGetVersion`, such as 12040 for CUDA 12.4; it is 13000 by
        default.
        """
        self._control("version", number)

    def last_words(self) -> str:
        """Reason why the last refused call was refused."""
        return self._text("last_words")

    def flags(
        self,
        *,
        vmm_supported: bool = True,
        devices: int = 1,
        strict_host: bool = True,
        shareable: bool = True,
    ) -> None:
        """Set these four properties. There are at most 4 `devices`; `shareable` ones can export
        memory.

        With `strict_host`, copies of host memory that is not registered are refused. Without it
        they are allowed, and have ended when the call returns.
        """
        self._control("flags", vmm_supported, devices, strict_host, shareable)

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"standin_{name}")

    def _control(self, name: str, *arguments: object) -> int:
        answer: int = self._function(name)(*arguments)
        if answer < 0:
            raise Refused(f"{name}{arguments}: makes no sense here, or this is a forked child")
        return answer

    def _text(self, name: str) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._control(name, text, _TEXT_BYTES)
        return text.value.decode()

    def _counts(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._text(name).splitlines())
        return {key: int(count) for key, count in pairs}


def build(folder: Path | None = None) -> Path:
    """Path of the compiled library, which is compiled again only if sources, flags or compiler have
    changed.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompiler("no C compiler: install cc, or name one in the environment as CC")
    sources = sorted(_HERE.glob("*.c"))
    digest = hashlib.sha256(repr((compiler, _FLAGS, _LINK)).encode())
    for source in [*sources, *sorted(_HERE.glob("*.h"))]:
        digest.update(source.read_bytes())
    # The user's own folder: nobody else can put a library there for us to load.
    cache = (folder or Path(tempfile.gettempdir())) / f"mirage-stand-in-{os.getuid()}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise BuildFailed(f"{cache} belongs to somebody else; remove it or set TMPDIR")
    path = cache / f"{digest.hexdigest()[:16]}-{SONAME}"
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}")
        command = [compiler, *_FLAGS, *map(str, sources), *_LINK, "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildFailed(f"{' '.join(command)}:\n{done.stderr}")
        made.replace(path)
    return path


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files, because each handle has a descriptor and the usual 1024 are
    soon used.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _ours_if_loaded() -> ctypes.CDLL | None:
    """The stand-in if this process has loaded it, else None. Raises `RealDriverLoaded`."""
    with suppress(OSError):
        library = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)
        if hasattr(library, "standin_reset"):
            return library
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcuda.so" in line:
            raise RealDriverLoaded(
                f"{line.split(maxsplit=5)[5]} is loaded in this process; run these tests in one "
                "that has not touched a GPU"
            )
    return None
