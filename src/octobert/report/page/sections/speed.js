// How times are distributed, and what a text costs by its length.
(() => {
  const SYMBOLS = { p50: "triangle", p90: "diamond", p99: "star" };
  const LEFT = 8;
  const SERIES = 8;
  const colour = (model) => `var(--series-${(model.number % SERIES) + 1})`;

  page.draw("speed", (root, data) => {
    distributions(root, data.shapes);
    if (data.costs) costs(root, data.costs);
  });

  function distributions(root, shapes) {
    if (!shapes.length) return;
    const figure = root.querySelector(".distribution");
    let shape = shapes[0];
    const chart = page.chart(figure, "Distribution of the times of each model", (width) => strips(shape, width));
    const controls = root.querySelector(".distributions");
    if (shapes.length > 1) {
      const menu = page.element("select", { onchange: () => { shape = shapes[menu.selectedIndex]; chart.redraw(); } },
        ...shapes.map((each) => page.element("option", {}, each.name)));
      controls.append(page.element("label", {}, "Batch × tokens ", menu), " ");
    }
    controls.append(page.csv("times.csv", ["model", "shape", "sample", "tokens", "ms"], () => shapes.flatMap((each) =>
      each.models.flatMap((model) => model.ms.map((ms, n) => [model.name, each.name, n + 1, model.tokens[n] ?? "", ms])))));
  }

  // One strip of samples for each model, its name above it.
  function strips(shape, width) {
    const samples = shape.models.flatMap((model) => model.ms.map((ms) => ({ model, ms })));
    const marks = shape.models.flatMap((model) => Object.entries(model.marks).map(([name, ms]) => ({ model, name, ms })));
    const at = { x: "ms", y: (d) => d.model.name };
    const shades = { stroke: (d) => colour(d.model), strokeOpacity: Math.max(0.08, Math.min(0.5, 25 / (samples.length / shape.models.length))) };
    return {
      height: 50 + 46 * shape.models.length, marginLeft: LEFT, marginRight: 20, marginTop: 14,
      x: { type: shape.logarithmic ? "log" : "linear", label: `ms at ${shape.name} →`, grid: true, ticks: width < 500 ? 4 : 8, tickFormat: "~g" },
      y: { domain: shape.models.map((model) => model.name), axis: null, padding: 0.5 },
      marks: [
        Plot.tickX(samples, { ...at, ...shades, strokeWidth: 1.5 }),
        Plot.text(shape.models, { y: "name", text: (model) => `${short(model.name)}  p50 ${model.marks.p50.toPrecision(3)} ms`, frameAnchor: "left", textAnchor: "start", dy: -18, fontWeight: (model) => (model.int8 ? 700 : 400), fontSize: 12, stroke: "var(--background)", strokeWidth: 4, fill: "currentColor" }),
        Plot.dot(marks, { ...at, symbol: (d) => SYMBOLS[d.name], fill: (d) => colour(d.model), stroke: "var(--background)", strokeWidth: 1.2, r: 6 }),
        Plot.tip(marks, Plot.pointer({ ...at, title: (d) => `${d.model.name}\n${d.name} ${d.ms} ms of ${d.model.ms.length} runs`, fill: "var(--surface)", stroke: "var(--muted)" })),
      ],
    };
  }

  function costs(root, data) {
    const axis = { domain: [0, data.longest * 1.02], label: "tokens →", grid: true };
    const room = { marginLeft: 46, marginRight: 110 };
    const figure = root.querySelector(".cost");
    page.chart(figure, "Milliseconds for one text against its tokens", (width) => curve(data, axis, narrow(room, width), width));
    const lengths = root.querySelector(".lengths");
    if (lengths) page.chart(lengths, "How many evaluation rows have which length", (width) => histogram(data, axis, narrow(room, width)));
    root.querySelector(".costs").append(
      page.csv("cost-by-length.csv", ["model", "tokens", "ms", "what"], () => data.points.map((p) => [p.name, p.tokens, p.ms, p.fixed ? "median at a fixed length" : "row"])), " ",
      ...(lengths ? [page.csv("lengths.csv", ["row", "tokens"], () => data.lengths.map((tokens, n) => [n, tokens]))] : []));
  }

  // On a phone there is no room for names beside the lines.
  function narrow(room, width) {
    return width < 500 ? { ...room, marginRight: 16 } : room;
  }

  function curve(data, x, room, width) {
    const at = { x: "tokens", y: "ms" };
    const rows = data.points.filter((point) => !point.fixed);
    const fixed = data.points.filter((point) => point.fixed);
    const symbols = [...new Set(data.points.map((point) => point.name))];
    const style = { stroke: colour, z: "name" };
    const line = (points, strokeWidth) => Plot.line(points, Plot.binX({ x: "median", y: "median" }, { ...at, ...style, strokeWidth, interval: data.bar * 2 }));
    return {
      height: Math.round(Math.min(Math.max(260, width * 0.4), 420)), ...room, x: { ...x, ticks: width < 500 ? 5 : 10 },
      y: { label: "↑ ms", grid: true, type: data.logarithmic ? "log" : "linear", zero: !data.logarithmic, nice: true, tickFormat: "~g", ticks: 6 },
      symbol: { domain: symbols, legend: width < 500 },
      marks: [
        Plot.dot(rows, { ...at, ...style, symbol: "name", r: 2.5, strokeOpacity: 0.4 }),
        line(rows.filter((p) => !p.int8), 1.5),
        line(rows.filter((p) => p.int8), 3),
        Plot.dot(fixed, { ...at, ...style, symbol: "name", r: 6, fill: "var(--background)", strokeWidth: 2 }),
        ...(width < 500 ? [] : [Plot.text(ends(data), { ...at, text: (p) => short(p.name), dx: 10, textAnchor: "start", fontSize: 12, fill: colour, fontWeight: (p) => (p.int8 ? 700 : 400) })]),
        Plot.tip(data.points, Plot.pointer({ ...at, title: (p) => `${p.name}\n${p.tokens} tokens: ${p.ms} ms${p.fixed ? " (median at this length)" : ""}`, fill: "var(--surface)", stroke: "var(--muted)" })),
      ],
    };
  }

  // Where the name of each model stands: at its longest text, moved apart where two would cover each other.
  function ends({ points, logarithmic }) {
    const last = new Map();
    for (const point of points) {
      const known = last.get(point.name);
      if (!known || point.tokens > known.tokens || (point.tokens === known.tokens && point.fixed)) last.set(point.name, point);
    }
    const [low, high] = [Math.min(...points.map((point) => point.ms)), Math.max(...points.map((point) => point.ms))];
    const above = (ms) => (logarithmic ? ms * (high / low) ** 0.05 : ms + 0.05 * high);
    const right = Math.max(...points.map((point) => point.tokens));
    let free = -Infinity;
    return [...last.values()].sort((a, b) => a.ms - b.ms).map((point) => {
      const ms = Math.max(point.ms, free);
      free = above(ms);
      return { ...point, ms, tokens: right };
    });
  }

  function histogram(data, x, room) {
    return {
      height: 120, ...room, x, y: { label: "↑ rows", grid: true, ticks: 3 },
      marks: [
        Plot.rectY(data.lengths, Plot.binX({ y: "count" }, { x: (tokens) => tokens, interval: data.bar, fill: "currentColor", fillOpacity: 0.45 })),
        Plot.tip(data.lengths, Plot.pointerX(Plot.binX({ y: "count" }, { x: (tokens) => tokens, interval: data.bar, fill: "var(--surface)", stroke: "var(--muted)" }))),
        Plot.ruleY([0]),
      ],
    };
  }

  function short(name) {
    return name.length > 40 ? `${name.slice(0, 39)}…` : name;
  }
})();
