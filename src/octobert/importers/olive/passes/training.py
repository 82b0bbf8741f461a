"""The pass of quantization-aware training."""

from __future__ import annotations

from octobert.importers.olive.draft import Draft, Rule, key, needless, refuse
from octobert.importers.olive.model import path_of_script
from octobert.importers.olive.passes.quantization import DATA, method
from octobert.importers.outcomes import Node


def _training(draft: Draft, step: Node) -> None:
    draft.set("qat", {})
    method(draft, "static", None)
    if (kind := step.get("type")) is not None:
        kind.mapped("qat")
    loop, script = step.get("training_loop_func"), step.get("user_script")
    if loop is not None and script is not None:
        code = f"{path_of_script(draft, step, script)}:{loop.text}"
        draft.set("qat.code", code, loop, "needs --allow-code; the model that it gets rounds as octobert's plan does")
        script.mapped("qat.code")
    elif loop is not None:
        loop.refused("a function needs its user_script")


_QAT: dict[str, Rule] = {
    "num_epochs": key("qat.epochs"),
    "seed": key("seed"),
    "train_data_config": needless("training rows: see data.finetune"),
    "val_data_config": needless("evaluation rows: see data.evaluate"),
    "do_validate": needless("finished models are evaluated always"),
    "num_steps": refuse("give epochs: a fraction ends earlier"),
    "gpus": refuse("training.processes says how many processes train"),
    "ptl_module": refuse("octobert trains with transformers, or with qat.code"),
    "ptl_data_module": refuse("octobert trains with transformers, or with qat.code"),
    "modules_to_fuse": needless("the graph is captured with its modules fused where the runtime fuses them"),
    "qconfig_func": refuse("quantize.static says types, ranges and placement"),
    "logger": refuse("training.tensorboard writes event files"),
    "checkpoint_path": needless("an interrupted training resumes"),
    "input_shapes": needless("rows have their own lengths"),
    **DATA,
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {"quantizationawaretraining": (_training, _QAT)}
