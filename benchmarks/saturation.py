"""What weights lose where 8-bit products saturate: with 7 bits, and with limited sums of neighbours (`reduce_range`).

    python benchmarks/saturation.py CHECKPOINT [CHECKPOINT ...]

Without VNNI, CPUs add the products of two neighbouring input channels in 16 bits, where two products of 255 and 127 saturate.
Usually all weights get 7 bits. octobert limits the sums of neighbours instead. Printed for each kind of linear layer are, of
both, the scale and the mean squared rounding error, relative to 8 bits without a limit (one scale per channel), and the largest
sum of products that a pair of weights can have, of the 32,767 that 16 bits hold. `tests/graph/test_saturation.py` tests in the
runtimes that no product saturates.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from safetensors import safe_open

from octobert.core.plan import Quantizer
from octobert.graph import qdq

EIGHT = Quantizer(dtype="int8", symmetric=True, axis=1)
LIMITED = EIGHT.replaced(reduce_range=True)
# Inputs of products are uint8.
LARGEST_INPUT = 255


def main() -> None:
    """Print a table for each checkpoint."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in sys.argv[1:]:
        print(
            f"{folder}\n{'':36}7 bits: scale error   neighbours: scale error largest sum   8 bits: largest sum"
        )
        for kind, rows in sorted(measured(Path(folder)).items()):
            seven, limited, sums = (np.mean([row[i] for row in rows], axis=0) for i in range(3))
            most = np.max([row[2] for row in rows], axis=0)
            assert sums[0] <= most[0] <= np.iinfo(np.int16).max
            print(
                f"{kind:36}{seven[0]:13.2f}{seven[1]:6.2f}{limited[0]:20.2f}{limited[1]:6.2f}{most[0]:12,}{most[1]:24,}"
            )


def measured(folder: Path) -> dict[str, list[tuple[tuple[float, ...], ...]]]:
    """Kind of layer → of each layer (scale, error) with 7 bits, the same with limited neighbours, largest sums of products."""
    kinds = defaultdict(list)
    with safe_open(folder / "model.safetensors", framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - it is no dict
            if ".layer." not in name or len(tensors.get_slice(name).get_shape()) != 2:
                continue
            weight = tensors.get_tensor(name).astype(np.float32).T
            scales = [qdq.weight_scale(weight, EIGHT)]
            scales += [scales[0] * 127 / 63, qdq.weight_scale(weight, LIMITED)]
            errors = [
                float(np.mean((qdq.dequantized_weight(weight, EIGHT, s) - weight) ** 2))
                for s in scales
            ]
            errors[2] = float(np.mean((qdq.dequantized_weight(weight, LIMITED) - weight) ** 2))
            ratios = [
                (float(np.mean(s / scales[0])), e / errors[0])
                for s, e in zip(scales, errors, strict=True)
            ]
            largest = tuple(
                LARGEST_INPUT
                * int(np.abs(qdq.pair_sums(qdq.quantize_weight(weight, q)[0].astype(int))).max())
                for q in (LIMITED, EIGHT)
            )
            kinds[name.partition(".layer.")[2].partition(".")[2]].append((*ratios[1:], largest))
    return kinds


if __name__ == "__main__":
    main()
