// The histogram of the activation that is chosen in the table, with the interval of each plan; and channels of smoothed groups.
{
  function histogram(figure, chosen, targets) {
    const bins = (each) => {
      const width = (each.high - each.low) / each.counts.length || 1e-6;
      return each.counts.map((count, i) => ({ count, from: each.low + i * width, to: each.low + (i + 1) * width }));
    };
    return page.chart(figure, "Histogram of the chosen activation; its range and intervals are in the table", (width) => {
      const each = chosen();
      const filled = bins(each).filter((bin) => bin.count > 0);
      const shown = targets.filter((target) => target in each.intervals);
      const rules = shown.map((target) => ({ target, low: each.intervals[target][0], high: each.intervals[target][1] }));
      const tip = (bin) => `${bin.from.toPrecision(3)} to ${bin.to.toPrecision(3)}: ${bin.count.toLocaleString("en")} values`;
      return {
        height: 256 + 24 * rules.length,
        marginBottom: 44,
        marginLeft: 56,
        marginTop: 12 + 24 * rules.length,
        x: { label: "value", labelAnchor: "center", labelOffset: 38, nice: true },
        y: { type: "log", domain: [0.5, Math.max(...each.counts)], label: "values (log)", ticks: 5, tickFormat: "~s", grid: true },
        marks: [
          Plot.rectY(filled, { x1: "from", x2: "to", y1: 0.5, y2: "count", fill: "var(--accent)", fillOpacity: 0.5, insetLeft: 0.5, insetRight: 0.5 }),
          ...rules.flatMap((rule, i) => {
            const above = -12 - 24 * i;
            return [
              Plot.ruleX([rule.low, rule.high], { stroke: "var(--bad)", strokeDasharray: i ? "2 3" : "6 3", strokeWidth: 1.5 }),
              Plot.ruleY([rule], { y: () => Math.max(...each.counts), x1: "low", x2: "high", dy: above, stroke: "var(--bad)", strokeDasharray: i ? "2 3" : "6 3", marker: "tick" }),
              Plot.text([rule], { x: (r) => (r.low + r.high) / 2, y: () => Math.max(...each.counts), dy: above - 8, text: (r) => `${r.target}: clips ${+(100 * each.clipped[r.target]).toPrecision(2)} %`, fill: "currentColor" }),
            ];
          }),
          Plot.tip(filled, Plot.pointerX({ x: (bin) => (bin.from + bin.to) / 2, y: "count", title: tip, fill: "var(--background)", stroke: "var(--line)" })),
        ],
      };
    });
  }

  function activations(root, data) {
    const holder = root.querySelector(".histogram");
    const rows = [...root.querySelectorAll(".list tbody tr")];
    let chosen = data.activations[0];
    const caption = page.element("figcaption", { "aria-live": "polite" });
    const figure = page.element("figure", {}, caption);
    const header = ["activation", "from", "to", "count"];
    const raw = () => data.activations.flatMap((each) => each.counts.map((count, i) => {
      const width = (each.high - each.low) / each.counts.length;
      return [each.value, each.low + i * width, each.low + (i + 1) * width, count];
    }));
    const search = page.element("input", { type: "search", placeholder: "module or role", oninput: () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    } });
    holder.append(figure, page.element("div", { className: "controls" }, page.element("label", {}, "Search ", search), " ", page.csv("activations.csv", header, raw)));
    const chart = histogram(figure, () => chosen, data.targets);
    const choose = (row, again = true) => {
      chosen = data.activations[Number(row.dataset.index)];
      caption.textContent = `${chosen.name} (${chosen.value})`;
      for (const each of rows) each.ariaCurrent = each === row ? "true" : null;
      if (again) chart.redraw();
    };
    for (const row of rows) {
      const cell = row.cells[0];
      cell.replaceChildren(page.element("button", { type: "button", onclick: () => choose(row) }, cell.textContent));
    }
    choose(rows[0], false);
  }

  function channels(root, groups) {
    const holder = root.querySelector(".channels");
    let group = groups[0];
    const select = page.element("select", { onchange: () => { group = groups[select.selectedIndex]; chart.redraw(); } }, ...groups.map((each) => page.element("option", {}, each.name)));
    const raw = () => groups.flatMap((each) => each.before.map((before, rank) => [each.name, rank, before, each.after[rank]]));
    const figure = page.element("figure", {}, page.element("figcaption", {}, "Largest magnitude of each channel, in the order before: circles before, triangles after. Of many channels, 128 of equal distance in rank."));
    holder.append(page.element("div", { className: "controls" }, page.element("label", {}, "Group ", select), " ", page.csv("channels.csv", ["group", "rank", "before", "after"], raw)), figure);
    const chart = page.chart(figure, "Largest magnitude of each channel of the chosen group before and after smoothing", (width) => {
      const points = ["before", "after"].flatMap((when) => group[when].map((value, rank) => ({ when, value, rank })));
      const seen = points.filter((point) => point.value > 0);
      const tip = (point) => `${point.when}: ${point.value.toPrecision(3)}\nbefore ÷ after: ${(group.before[point.rank] / group.after[point.rank]).toPrecision(3)}`;
      return {
        height: 276,
        marginBottom: 44,
        marginLeft: 56,
        x: { label: "channel, by its magnitude before", labelAnchor: "center", labelOffset: 38 },
        y: { type: "log", label: "largest magnitude (log)", ticks: 5, tickFormat: "~g", grid: true },
        symbol: { domain: ["before", "after"], range: ["circle", "triangle"] },
        marks: [
          Plot.dot(seen, { x: "rank", y: "value", symbol: "when", r: 3.5, stroke: { value: (p) => (p.when === "before" ? "var(--bad)" : "var(--good)"), scale: null } }),
          Plot.tip(seen, Plot.pointer({ x: "rank", y: "value", title: tip, fill: "var(--background)", stroke: "var(--line)" })),
        ],
      };
    });
  }

  page.draw("ranges", (root, data) => {
    if (data.activations.length) activations(root, data);
    if (data.groups.length) channels(root, data.groups);
  });
}
