"""Passes that choose how a finished model is opened."""

from __future__ import annotations

from octobert.importers.olive.draft import Draft, Rule, false_is_default, needless, refuse
from octobert.importers.outcomes import Node

_TRIED = "octobert's tuner tries threads, streams and the options of the runtime by itself"


def _tune(draft: Draft, step: Node) -> None:
    draft.set("tune", ["latency"])
    if (kind := step.get("type")) is not None:
        kind.mapped("tune", "packages that can run here are tuned, and open with what was found")


def _half(draft: Draft, node: Node) -> None:
    if node.value is True:
        draft.half = draft.half or node
    else:
        node.not_needed("the graph says its precisions")


def _bound(draft: Draft, node: Node) -> None:
    node.not_needed(
        "the tuner tries it with and without binding" if node.value else "the tuner takes binding only where it is faster"
    )


def _extra(draft: Draft, node: Node) -> None:
    provider = next(iter(draft.providers), ("CPU", ""))[0]
    if isinstance(node.value, dict):
        draft.settings.append((provider, "options", node.value, node))
    else:
        node.refused("session options are a mapping")


_TUNING: dict[str, Rule] = {
    "data_config": needless("the tuner times rows of the evaluated data's lengths"),
    "io_bind": _bound,
    "trt_fp16_enable": _half,
    "enable_cuda_graph": false_is_default("session: {tensorrt: {provider: {trt_cuda_graph_enable: 1}}} sets it"),
    "device": needless("the targets say the device"),
    "cpu_cores": refuse(f"{_TRIED}, up to the cores of the machine"),
    "providers_list": refuse("each target has one provider; list the targets"),
    "provider_options_list": refuse("session: {TARGET: {provider: …}} sets options of a provider"),
    "execution_mode_list": needless(f"{_TRIED}; encoders have no branches to run side by side"),
    "opt_level_list": needless("octobert's files need all optimizations, which are on"),
    "intra_thread_num_list": needless(_TRIED),
    "inter_thread_num_list": needless(_TRIED),
    "extra_session_config": _extra,
    "force_evaluate_other_eps": needless("each target is tuned"),
    "enable_profiling": needless("octobert inspect OUT/TARGET --runtime profiles a model"),
    "dataloader_func": refuse(_TRIED),
    "data_dir": refuse(_TRIED),
    "batch_size": needless("benchmark.batch says it"),
    "input_names": needless("the captured graph names its inputs"),
    "input_shapes": needless("benchmark.batch and benchmark.sequence say what is timed"),
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "ortsessionparamstuning": (_tune, _TUNING),
    "ortperftuning": (_tune, _TUNING),
}
