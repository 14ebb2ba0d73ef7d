"""A loop like decode over 40 layers the size of OPT-13b's, some of them streamed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.bounds import step_bound
from benchmarks.gpu.bench import HIDDEN, MATRICES, Bench, Model, model
from benchmarks.gpu.rows import Row, alternating, at_most, median, ms, timed
from mirage.control.hiding import largest_hidden
from vmm.space import Range

BATCHES = (64, 512, 2048)
"""Tokens in a step. The more, the more layers hide; on PCIe few do at the sizes of decode."""
ABOVE = 4
"""Layers beyond the cap, in the row that is bound by the link."""
ROUNDS = 5
NEAR = 1.03
BOUND = 1.05

Run = Callable[[], None]
"""Function that runs one step through all layers."""


def at_the_cap(bench: Bench) -> list[Row]:
    """Rows on a decode step with as many layers away as hide, and with more, relative to one with
    none away.
    """
    bench.need_kernels()
    rows = []
    with model(bench) as made:
        load_s = _load_s(made)
        for batch in BATCHES:
            run = _step(made, batch)
            made.streamer.set(0, 1)
            run()
            base_s = median([_synchronized(made, run) for _ in range(ROUNDS)])
            rows += _against(made, batch, run, load_s, base_s / len(made.layers))
            made.streamer.set(0, 1)
            made.driver.synchronize()
    return rows


def _against(made: Model, batch: int, run: Run, load_s: float, compute_s: float) -> list[Row]:
    n = len(made.layers)
    remapped, slots = largest_hidden(n, load_s, compute_s, (1, 2), n)
    more = min(n - 2, remapped + ABOVE)
    seconds = alternating(
        {
            "none": partial(_at, made, run, 0, 1),
            "cap": partial(_at, made, run, remapped, slots),
            "above": partial(_at, made, run, more, 2),
        },
        ROUNDS,
    )
    none, cap, above = (median(seconds[name]) for name in ("none", "cap", "above"))
    right = _outputs(made, 0, 1) == _outputs(made, remapped, slots) == _outputs(made, more, 2)
    texts = "outputs alike" if right else "outputs differ"
    bound = step_bound(more, 2, n, load_s, compute_s)
    sizes = f"{n} layers of {made.layers[0].nbytes / 1e6:.0f} MB, {batch} tokens a step"
    details = {
        "t_load_s": load_s,
        "t_compute_s": compute_s,
        "layers_remapped": remapped,
        "stream_slots": slots,
        "above": more,
        "bound_s": bound,
        "seconds": {"none": none, "cap": cap, "above": above},
    }
    return [
        Row(
            f"decode loop, {batch}",
            f"{sizes}: layers remapped to the cap ({remapped}, {slots} slots) against none",
            f"{cap / none:.3f} ({ms(cap)} against {ms(none)}), {texts}",
            f"<= {NEAR}" if remapped else "no layer hides at this size",
            right and at_most(cap / none, NEAR) if remapped else None,
            details,
        ),
        Row(
            f"above the cap, {batch}",
            f"{sizes}: {more} layers remapped, against the bound of the link",
            f"{above / bound:.3f} ({ms(above)} against {ms(bound)})",
            f"<= {BOUND}",
            right and at_most(above / bound, BOUND),
            details,
        ),
    ]


def _outputs(made: Model, remapped: int, slots: int) -> list[float]:
    """Outputs of each layer in the second of two steps; all layers hold different numbers."""
    import torch

    x = torch.ones(1, HIDDEN, dtype=torch.bfloat16, device="cuda")
    made.streamer.set(remapped, slots)
    for _ in range(2):
        outs = []
        for index in range(len(made.layers)):
            made.streamer.before(index)
            outs.append(torch.mm(x, made.weights(index)[MATRICES - 1]).sum(dtype=torch.float64))
            made.streamer.after(index)
    made.driver.synchronize()
    return [float(out) for out in outs]


def _at(made: Model, run: Run, remapped: int, slots: int) -> float:
    """Seconds of a step once the set of streamed layers has been in use for two steps."""
    made.streamer.set(remapped, slots)
    run()
    run()
    return _synchronized(made, run)


def _synchronized(made: Model, run: Run, steps: int = 3) -> float:
    """Mean seconds of a step over `steps` steps without a wait between them."""
    made.driver.synchronize()

    def several() -> None:
        for _ in range(steps):
            run()
        made.driver.synchronize()

    return timed(several) / steps


def _step(made: Model, batch: int) -> Run:
    """Function that runs a step: it multiplies every matrix of every layer by a batch of
    activations.
    """
    import torch

    x = torch.ones(batch, HIDDEN, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(x)
    weights = [made.weights(index) for index in range(len(made.layers))]

    def run() -> None:
        for index, layer in enumerate(weights):
            made.streamer.before(index)
            for matrix in range(MATRICES):
                torch.mm(x, layer[matrix], out=out)
            made.streamer.after(index)

    return run


def _load_s(made: Model) -> float:
    """T_T: median seconds to load one layer."""
    layer, copies = made.layers[0], made.streamer.copies

    def load() -> None:
        copies.copy(layer.range.address, layer.master, layer.nbytes)
        copies.synchronize()

    return median([timed(load) for _ in range(2 * ROUNDS)])


def streamed_is_right(bench: Bench) -> Row:
    """Row on the content of streamed layers: right for every number of layers remapped, also after
    aborted steps.
    """
    wrong = 0
    with model(bench, layers=6) as made:
        n, nbytes = len(made.layers), made.layers[0].nbytes
        frame = made.streamer.frame_bytes
        out_pages = made.pool.take(frame // made.driver.page_bytes, "check")
        out = Range(made.driver, frame)
        out.back(0, out_pages)
        for remapped, slots in ((0, 1), (1, 1), (2, 2), (n - 2, 2), (n - 1, 1), (1, 2), (0, 1)):
            made.streamer.set(remapped, slots)
            for last in (n, 3, n):  # the second is aborted
                for index in range(last):
                    made.streamer.before(index)
                    address = made.layers[index].range.address
                    made.stream.copy(out.address, address, nbytes)
                    made.streamer.after(index)
                    wrong += not _holds(made, out.address, nbytes, index + 1)
            made.streamer.check_integrity()
    return Row(
        "streamed layers",
        f"{n} layers copied out by the stream that computes, any number away, some steps aborted",
        "all right" if not wrong else f"{wrong} wrong",
        "all right",
        not wrong,
    )


def _holds(made: Model, address: int, nbytes: int, value: int) -> bool:
    made.stream.synchronize()
    tensor = made.driver.tensor(address, nbytes)
    return int(tensor.min()) == int(tensor.max()) == value
