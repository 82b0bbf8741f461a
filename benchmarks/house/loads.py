"""How often a run for one target loads and saves each ONNX file, in this process, of a small random model.

python -m benchmarks.house.loads
"""

from __future__ import annotations

import collections
import tempfile
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octobert.config.loading import parse
from octobert.engine.executors import inline
from octobert.graph import operators
from octobert.pipeline import runner
from tests.support.checkpoints import make_checkpoint
from tests.support.runs import write_pairs


def main() -> None:
    """Run, count, print."""
    loads, saves = collections.Counter[str](), collections.Counter[str]()
    load, save = ir.load, operators.save

    def counted_load(path: Any, *rest: Any, **options: Any) -> ir.Model:
        loads[Path(path).name] += 1
        return load(path, *rest, **options)

    def counted_save(model: ir.Model, path: Path, *rest: Any, **options: Any) -> None:
        saves[path.name] += 1
        save(model, path, *rest, **options)

    ir.load, operators.save = counted_load, counted_save
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = {
            "model": str(make_checkpoint(folder / "model", "bert", "sequence-classification")),
            "task": {"text-classification": {"text": ["sentence1", "sentence2"]}},
            "data": str(write_pairs(folder / "data")),
            "targets": ["ort-cpu"],
            "measure": False,
        }
        runner.run(parse(recipe), folder / "out", executor=inline.run)
    for file in sorted({*loads, *saves}):
        print(f"{file}: {loads[file]} loads, {saves[file]} saves")


if __name__ == "__main__":
    main()
