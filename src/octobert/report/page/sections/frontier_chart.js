// How the frontier is drawn, and which candidate keeps the limits.
const frontierChart = (() => {
  const MARGIN = { top: 26, right: 20, bottom: 42, left: 52 };

  // What is drawn at the chosen shape: figures as numbers, and what is far below the rest at the edge.
  function shown({ data, shape }) {
    const edge = data.y.more ? data.y.low : data.y.high;
    return data.points.flatMap((point, index) => {
      const x = point.x[shape];
      if (!x) return [];
      const far = point.y !== null && (data.y.more ? point.y[0] < edge : point.y[0] > edge);
      const y = point.y && point.y.map((value) => Math.min(Math.max(value, data.y.low), data.y.high));
      return [{ ...point, index, x, y, far, real: point.y, front: point.front[shape], wins: winner(data, shape, {})?.name === point.name }];
    });
  }

  function keeps(axis, value, limit) {
    return limit === null || limit === undefined || (axis.more ? value >= limit : value <= limit);
  }

  // The first candidate in the order of preference that keeps both limits.
  function winner(data, shape, limits) {
    const kept = (n) => {
      const { x, y } = data.points[n];
      return keeps(data.x[shape], x[shape][0], limits.x) && keeps(data.y, y[0], limits.y);
    };
    const found = data.order[shape].find(kept);
    return found === undefined ? null : data.points[found];
  }

  function scalesOf({ data, shape }, width, height) {
    const { low, high, logarithmic } = data.x[shape];
    const y = [data.y.low, data.y.high];
    return {
      x: Plot.scale({ x: { type: logarithmic ? "log" : "linear", domain: [low, high], range: [MARGIN.left, width - MARGIN.right] } }),
      y: Plot.scale({ y: { domain: data.y.more ? y : y.reverse(), range: [height - MARGIN.bottom, MARGIN.top] } }),
    };
  }

  function options(view, width) {
    const { data, shape } = view;
    const height = Math.round(Math.min(Math.max(300, width * 0.52), 440));
    const scales = (view.scales = scalesOf(view, width, height));
    const points = shown(view);
    const judged = points.filter((point) => point.y);
    const best = winner(data, shape, view);
    const axis = data.x[shape];
    return {
      height,
      marginTop: MARGIN.top, marginRight: MARGIN.right, marginBottom: MARGIN.bottom, marginLeft: MARGIN.left,
      x: { ...plain(scales.x), label: `${axis.title}${axis.more ? ", more is better" : ""} →`, ticks: width < 500 ? 5 : 8, tickFormat: (value) => figure(value) },
      y: { ...plain(scales.y), label: `↑ ${data.y.title}`, grid: true, ticks: 6, tickFormat: (value) => figure(value) },
      marks: [
        ...limits(view),
        Plot.line(judged.filter((p) => p.front && !p.far).sort((a, b) => a.x[0] - b.x[0]), { x: (p) => p.x[0], y: (p) => p.y[0], stroke: "currentColor", strokeOpacity: 0.55 }),
        ...["others", "best"].flatMap((which) => marks(judged.filter((p) => (p.name === best?.name) === (which === "best")), which === "best")),
        Plot.ruleX(points.filter((p) => !p.y), { x: (p) => p.x[0], y1: data.y.more ? data.y.low : data.y.high, y2: mix(data.y, 0.04), strokeWidth: 2, strokeOpacity: 0.5 }),
        ...names(judged, best, scales, width, height),
        ...tips(points, view),
      ],
    };
  }

  // A scale as options of a chart.
  function plain({ type, domain, range }) {
    return { type, domain, range };
  }

  // A value of an axis, as a share of its length from the worst end.
  function mix({ low, high, more }, share) {
    return more ? low + share * (high - low) : high - share * (high - low);
  }

  // Boxes over both intervals, and marks at the values: squares are float models, rings miss a limit of the recipe.
  function marks(points, isBest) {
    const colour = isBest ? "var(--good)" : "currentColor";
    const box = { x1: (p) => p.x[1], x2: (p) => p.x[2], y1: (p) => p.y[1], y2: (p) => p.y[2], inset: -0.7 };
    const mark = { x: (p) => p.x[0], y: (p) => p.y[0], stroke: colour, strokeWidth: 1.5, r: isBest ? 6.5 : 4.5 };
    const kept = (p) => p.state !== "misses";
    const symbol = (p) => (p.far ? "triangle" : p.float ? "square" : "circle");
    return [
      Plot.rect(points.filter((p) => !p.far), { ...box, fill: colour, fillOpacity: isBest ? 0.22 : 0.09, stroke: colour, strokeOpacity: isBest ? 0.6 : 0.28 }),
      Plot.dot(points.filter(kept), { ...mark, fill: colour, symbol }),
      Plot.dot(points.filter((p) => !kept(p)), { ...mark, fill: "var(--background)", symbol }),
    ];
  }

  // Lines of both limits; what they exclude is shaded. Without a limit the line waits at the edge.
  function limits({ data, shape, x, y }) {
    const axis = data.x[shape];
    const lines = [];
    const shade = { fill: "currentColor", fillOpacity: 0.05 };
    const line = (limit) => ({ stroke: "var(--accent)", strokeWidth: 2, strokeDasharray: limit === null ? "2 6" : "7 4" });
    const at = { x: x ?? (axis.more ? axis.low : axis.high), y: y ?? (data.y.more ? data.y.low : data.y.high) };
    if (x !== null) lines.push(Plot.rect([at], { x1: axis.more ? axis.low : x, x2: axis.more ? x : axis.high, y1: data.y.low, y2: data.y.high, ...shade }));
    if (y !== null) lines.push(Plot.rect([at], { x1: axis.low, x2: axis.high, y1: data.y.more ? data.y.low : y, y2: data.y.more ? y : data.y.high, ...shade }));
    lines.push(Plot.ruleX([at.x], { ...line(x), className: "limit-of-cost" }), Plot.ruleY([at.y], { ...line(y), className: "limit-of-quality" }));
    const text = { fill: "var(--accent)", fontWeight: 600, text: () => "⇕ limit" };
    lines.push(Plot.text([at.y], { ...text, y: (d) => d, frameAnchor: "left", textAnchor: "start", dx: 4, dy: -7 }));
    lines.push(Plot.text([at.x], { ...text, text: () => "⇔ limit", x: (d) => d, frameAnchor: "top", textAnchor: "end", dx: -5, dy: 6 }));
    return lines;
  }

  // Names of the winner, the frontier and the reference, beside their points where they cover as little as possible.
  function names(points, best, scales, width, height) {
    const taken = points.map((p) => ({ left: scales.x.apply(p.x[0]) - 6, right: scales.x.apply(p.x[0]) + 6, y: scales.y.apply(p.y[0]), high: 12 }));
    const chosen = points.filter((p) => p.named || p.name === best?.name).sort((a, b) => (b.name === best?.name) - (a.name === best?.name));
    const placed = chosen.map((point) => place(point, point.name === best?.name, scales, width, height, taken));
    const text = { x: { value: "x", scale: null }, y: { value: "y", scale: null }, text: "text", fontSize: 12, stroke: "var(--background)", strokeWidth: 4, fill: "currentColor" };
    return ["start", "end"].flatMap((textAnchor) => [false, true].map((bold) => Plot.text(
      placed.filter((each) => each.anchor === textAnchor && each.bold === bold), { ...text, textAnchor, fontWeight: bold ? 700 : 400 })));
  }

  function place(point, bold, scales, width, height, taken) {
    const short = point.name.length > 34 ? `${point.name.slice(0, 33)}…` : point.name;
    const text = point.far ? `${short} (${figure(point.real[0])})` : short;
    const [x, y, wide] = [scales.x.apply(point.x[0]), scales.y.apply(point.y[0]), 6.8 * text.length];
    const tries = [0, -14, 14, -28, 28, -42, 42, -56].flatMap((dy) => [1, -1].map((side) => ({
      left: side > 0 ? x + 10 : x - 10 - wide, right: side > 0 ? x + 10 + wide : x - 10, y: y + dy, high: 14, side, dy })));
    const cost = (box) => 3 * Math.abs(box.dy) / 14 + (box.side < 0 ? 1 : 0)
      + (box.left < MARGIN.left || box.right > width || box.y < MARGIN.top - 6 || box.y > height - MARGIN.bottom ? 1000 : 0)
      + taken.reduce((sum, other) => sum + (Math.min(box.right, other.right) > Math.max(box.left, other.left) && Math.abs(box.y - other.y) < (box.high + other.high) / 2 ? 25 : 0), 0);
    const found = tries.reduce((a, b) => (cost(b) < cost(a) ? b : a));
    taken.push(found);
    return { text, bold, x: found.side > 0 ? found.left : found.right, y: found.y, anchor: found.side > 0 ? "start" : "end" };
  }

  // What is known of a candidate, where a pointer or the keyboard is.
  function tips(points, view) {
    const at = { x: (p) => p.x[0], y: (p) => (p.y ? p.y[0] : mix(view.data.y, 0.04)), title: (p) => details(p, view).join("\n"), lineWidth: 26, fill: "var(--surface)", stroke: "var(--muted)", fontSize: 12 };
    const focused = points.filter((p) => p.index === view.focus);
    return [Plot.tip(points, Plot.pointer(at)), Plot.tip(focused, at)];
  }

  function details(point, { data, shape }) {
    const axis = data.x[shape];
    const interval = ([value, low, high]) => (low === high ? figure(value) : `${figure(value)} (${figure(low)} to ${figure(high)})`);
    return [`${point.name}: ${point.state}`, `${interval(point.x)} ${axis.unit}`, ...point.details];
  }

  // Three significant digits, with a true minus.
  function figure(value) {
    const text = Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
    return text.replace("-", "−");
  }

  return { shown, keeps, winner, options, details, figure };
})();
