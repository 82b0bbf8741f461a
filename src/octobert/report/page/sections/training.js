// Each quantity of each training by step; the loss in a linear or a logarithmic scale.
page.draw("training", (root, data) => {
  const holder = root.querySelector(".curves");
  const charts = [];
  const toggle = page.element("input", { type: "checkbox", onchange: () => charts.forEach((each) => each.redraw()) });
  holder.append(page.element("div", { className: "controls" }, page.element("label", {}, toggle, " logarithmic loss")));

  function drawn(row, curve, name) {
    const points = curve.steps.map((step, i) => ({ step, value: curve.values[name][i] })).filter((point) => point.value !== null);
    const log = () => toggle.checked && name === "loss" && points.every((point) => point.value > 0);
    const figure = page.element("figure", {}, page.element("figcaption", {}, `${curve.title}: ${name}`));
    row.append(figure);
    const last = points[points.length - 1];
    charts.push(page.chart(figure, `${curve.title}: ${name} over ${points.length} steps, ${points[0].value.toPrecision(3)} at first and ${last.value.toPrecision(3)} at last`, () => ({
      height: 256,
      marginBottom: 44,
      marginLeft: 64,
      x: { label: "step", labelAnchor: "center", labelOffset: 38 },
      y: { type: log() ? "log" : "linear", zero: !log(), label: name, grid: true, ticks: 5, tickFormat: name === "loss" ? "~g" : "~e" },
      marks: [
        Plot.lineY(points, { x: "step", y: "value", stroke: "var(--accent)", strokeOpacity: name === "loss" ? 0.35 : 1 }),
        ...(name === "loss" ? [Plot.lineY(points, Plot.windowY({ k: Math.max(1, Math.ceil(points.length / 20)), x: "step", y: "value", stroke: "var(--accent)", strokeWidth: 2 }))] : []),
        Plot.tip(points, Plot.pointerX({ x: "step", y: "value", title: (point) => `step ${point.step}: ${point.value.toPrecision(4)}`, fill: "var(--background)", stroke: "var(--line)" })),
      ],
    })));
  }

  for (const curve of data.curves) {
    const row = page.element("div", { className: "row" });
    const names = Object.keys(curve.values);
    holder.append(row);
    for (const name of names) drawn(row, curve, name);
    holder.append(page.csv(`${curve.name}.csv`, ["step", ...names], () => curve.steps.map((step, i) => [step, ...names.map((name) => curve.values[name][i])])));
  }
});
