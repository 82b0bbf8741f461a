// Each trial is a mark: filled where it keeps the limits, a cross where not. The line is the best so far of those that do.
page.draw("trials", (root, data) => {
  const holder = root.querySelector(".searches");

  function best(trials, more) {
    let found = null;
    return trials.map((trial) => {
      if (trial.met && (found === null || (more ? trial.value > found : trial.value < found))) found = trial.value;
      return { ...trial, value: found };
    }).filter((trial) => trial.value !== null);
  }

  for (const { title, file, label, more, trials } of data.charts) {
    let axis = "number";
    const select = page.element("select", { onchange: () => { axis = ["number", "seconds"][select.selectedIndex]; chart.redraw(); } }, page.element("option", {}, "trial"), page.element("option", {}, "seconds"));
    const line = best(trials, more);
    const figure = page.element("figure", {}, page.element("figcaption", {}, `${title}. Filled: keeps the limits; cross: does not; line: the best so far.`));
    holder.append(figure, page.element("div", { className: "controls" }, page.element("label", {}, "by ", select), " ",
      page.csv(file, ["number", "seconds", "value", "met", "name"], () => trials)));
    const kept = trials.filter((trial) => trial.met).length;
    const chart = page.chart(figure, `${title}: ${trials.length} trials, ${kept} keep the limits; figures in the table`, (width) => ({
      width: Math.min(width, 820),
      height: 256,
      marginBottom: 44,
      marginLeft: 56,
      x: { label: axis === "number" ? "trial" : "seconds of trials", labelAnchor: "center", labelOffset: 38, ...(axis === "number" ? { ticks: Math.min(10, trials.length), tickFormat: "d" } : { zero: true }), inset: 8 },
      y: { label, grid: true, nice: true, ticks: 5, inset: 6 },
      marks: [
        Plot.line(line, { x: axis, y: "value", stroke: "var(--accent)", curve: "step-after" }),
        Plot.dot(trials, { filter: (trial) => trial.met, x: axis, y: "value", fill: "var(--good)", r: 4 }),
        Plot.dot(trials, { filter: (trial) => !trial.met, x: axis, y: "value", symbol: "times", stroke: "var(--bad)", r: 4 }),
        Plot.tip(trials, Plot.pointer({ x: axis, y: "value", title: (trial) => `trial ${trial.number}: ${trial.value.toPrecision(3)} ${label}\n${trial.name}`, fill: "var(--background)", stroke: "var(--line)", lineWidth: Math.min(26, (width - 60) / 12) })),
      ],
    }));
  }
});
