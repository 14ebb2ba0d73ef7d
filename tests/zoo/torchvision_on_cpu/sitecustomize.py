"""On PYTHONPATH: lets torchvision's build for CUDA be imported beside torch for CPUs.

The registry has no other build. Its operators cannot be loaded, and registering the shapes of
two of them fails while nobody has declared them. What vLLM's models use is Python on tensors.
"""

import sys
from importlib.abc import MetaPathFinder

SUPPRESSION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = {"torchvision::nms": SUPPRESSION, "torchvision::qnms": SUPPRESSION}


class Declares(MetaPathFinder):
    """Import hook that declares the operators when torchvision is about to be imported; it finds no
    module itself.
    """

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator, schema in OPERATORS.items():
                torch.library.define(operator, schema)


sys.meta_path.insert(0, Declares())
