// What stayed of each layer, drop against speedup, and the time of a sublayer by its heads or neurons.
page.draw("pruning", (root, data) => {
  const holder = page.element("div", { className: "row" });
  root.querySelector(".pruned").append(holder);
  const figure = (caption) => {
    const made = page.element("figure", {}, page.element("figcaption", {}, caption));
    holder.append(made);
    return made;
  };
  const tip = (rows, options) => Plot.tip(rows, Plot.pointer({ ...options, fill: "var(--background)", stroke: "var(--line)" }));

  if (data.tried.length) {
    const points = data.tried;
    page.chart(figure(`Drop of ${data.metric} on the tuning rows, by measured speedup`), `${points.length} models: drop of ${data.metric} by measured speedup`, () => ({
      height: 280,
      marginLeft: 64,
      marginBottom: 44,
      x: { label: "speedup over the whole model in 8 bits", labelAnchor: "center", labelOffset: 38 },
      y: { label: `drop of ${data.metric}`, grid: true },
      marks: [
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.ruleX(points, { x: "speedup", y1: "low", y2: "high", stroke: "var(--accent)", strokeOpacity: 0.4 }),
        Plot.ruleY(points, { y: "drop", x1: "speedup_low", x2: "speedup_high", stroke: "var(--accent)", strokeOpacity: 0.4 }),
        Plot.lineY(points, { x: "speedup", y: "drop", stroke: "var(--accent)" }),
        Plot.dot(points, { x: "speedup", y: "drop", stroke: "var(--accent)", fill: (d) => (d.chosen ? "var(--accent)" : "var(--background)"), r: 5 }),
        tip(points, { x: "speedup", y: "drop", title: (d) => `${d.speedup_text} ×, predicted ${d.predicted.toFixed(2)} ×${d.chosen ? ", chosen" : ""}\n${data.metric} ${d.metric.toFixed(4)}, drop ${d.drop_text}\n${d.stayed}` }),
      ],
    }));
  }

  for (const kind of new Set(data.layers.map((row) => row.kind))) {
    const rows = data.layers.filter((row) => row.kind === kind);
    page.chart(figure(`${kind[0].toUpperCase()}${kind.slice(1)} of each layer`), `${kind} that stay in each of ${rows.length} layers`, () => ({
      height: 200,
      marginLeft: 64,
      marginBottom: 44,
      x: { type: "band", label: "layer", labelAnchor: "center", labelOffset: 38, tickFormat: (module) => rows.find((row) => row.module === module).layer },
      y: { label: kind, grid: true },
      marks: [
        Plot.barY(rows, { x: "module", y: "units", fill: "var(--line)", fillOpacity: 0.5 }),
        Plot.barY(rows, { x: "module", y: "kept", fill: "var(--accent)" }),
        tip(rows, { x: "module", y: "units", title: (d) => `${d.module}: ${d.kept} of ${d.units} ${d.kind}\nerror ${d.error.toPrecision(2)}, loss ${d.loss.toPrecision(2)}` }),
      ],
    }));
  }

  for (const kind of new Set(data.times.map((row) => row.kind))) {
    const rows = data.times.filter((row) => row.kind === kind);
    page.chart(figure(`Time of one sublayer by its ${kind}`), `milliseconds of one sublayer by ${kind}`, () => ({
      height: 200,
      marginLeft: 64,
      marginBottom: 44,
      x: { label: kind, labelAnchor: "center", labelOffset: 38 },
      y: { label: "ms", grid: true, zero: true },
      marks: [
        Plot.lineY(rows, { x: "units", y: "ms", stroke: "var(--accent)" }),
        Plot.dot(rows, { x: "units", y: "ms", stroke: "var(--accent)", fill: "var(--background)" }),
        tip(rows, { x: "units", y: "ms", title: (d) => `${d.units} ${d.kind}: ${d.ms.toFixed(4)} ms` }),
      ],
    }));
  }
  root.querySelector(".pruned").append(page.csv("pruning.csv", ["layer", "module", "units", "kept", "error", "loss"], () => data.layers.map((row) => [row.layer, row.module, row.units, row.kept, row.error, row.loss])));
});
