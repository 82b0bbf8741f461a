// The share of the time of each type of operator; those that compute in integers are filled, the others are only outlined.
page.draw("executed", (root, data) => {
  const most = 10;
  data.models.forEach((model, index) => {
    if (!model.types.length) return;
    const shown = model.types.slice(0, most);
    const rest = model.types.slice(most);
    if (rest.length) shown.push({ type: `${rest.length} other types`, precision: "", count: 0, ms: d3.sum(rest, (each) => each.ms), share: d3.sum(rest, (each) => each.share), integer: false });
    const name = (each) => [each.type, each.precision].filter(Boolean).join(" ");
    const tip = (each) => `${name(each)}: ${each.ms.toPrecision(3)} ms, ${(100 * each.share).toFixed(1)} % of the time${each.count ? `, ${each.count} operators` : ""}; ${each.integer ? "computed in integers" : "not in integers"}`;
    const figure = page.element("figure", {}, page.element("figcaption", {}, "Share of the operator time; filled: computed in integers. ",
      page.csv(`executed-${model.name}.csv`, ["layer", "part", "ms", "integer share", "operators", "why"], () => model.parts)));
    root.querySelector(`[data-model="${index}"] > .drawn`).append(figure);
    page.chart(figure, `Share of the time of ${model.name} by type of operator; figures in the table`, (width) => ({
      height: 22 * shown.length + 46,
      marginBottom: 42,
      width: Math.min(width, 760),
      marginLeft: Math.min(220, width / 2.2),
      marginRight: 48,
      marginTop: 4,
      x: { percent: true, label: "% of the time", labelAnchor: "center", labelOffset: 34, ticks: 4, grid: true },
      y: { domain: shown.map(name), label: null, tickSize: 0 },
      marks: [
        Plot.barX(shown, { x: "share", y: name, fill: { value: (each) => (each.integer ? "var(--good)" : "transparent"), scale: null }, fillOpacity: 0.75, stroke: { value: (each) => (each.integer ? "var(--good)" : "var(--muted)"), scale: null } }),
        Plot.text(shown, { x: "share", y: name, text: (each) => (100 * each.share).toFixed(1), textAnchor: "start", dx: 4, fill: "currentColor" }),
        Plot.tip(shown, Plot.pointerY({ x: "share", y: name, title: tip, fill: "var(--background)", stroke: "var(--line)" })),
      ],
    }));
  });
});
