// Maps of layers × parts, side by side. The arrow keys move from cell to cell; what is known of a cell, under the pointer too, stands below the maps.
page.draw("layers", (root, data) => {
  const holder = root.querySelector(".maps");
  const { columns } = data;
  let parts = data.parts;
  const column = (cell) => (cell.layer === null ? data.outside : String(cell.layer));
  const tints = { int8: "good", fallback: "bad", int16: "accent", weights: "warn", partly: "warn", float: "muted" };
  let target = data.targets[0];
  let chosen = null;
  let charts = [];

  function described(cell) {
    const place = cell.layer === null ? cell.part : `Layer ${cell.layer}, ${cell.part}`;
    const lines = [`${place}: ${cell.plan}`];
    if (cell.ms !== null) {
      const share = cell.share === null ? "" : `, ${(100 * cell.share).toFixed(1)} % of all`;
      lines.push(`${cell.ms.toFixed(3)} ms${share}; ${(100 * cell.integer).toFixed(0)} % of it in integers`);
    }
    if (cell.error !== null) lines.push(`Output error ${cell.error.toExponential(1)} (${cell.errorOf})`);
    if (cell.operators) lines.push(`Ran as ${cell.operators}`);
    if (cell.why) lines.push(cell.why);
    return lines;
  }

  // What a map needs besides its own cells: axes, and the outlines of the cells under the pointer and that keys have chosen.
  function options(width, cells, marks) {
    const side = { x: column, y: "part" };
    return {
      height: 26 * parts.length + 34,
      marginLeft: 118,
      marginTop: 24,
      marginBottom: 6,
      marginRight: 4,
      padding: 0.06,
      x: { domain: columns, axis: "top", label: null, tickSize: 0, ticks: columns.filter((_, i) => i % Math.ceil((22 * columns.length) / (width - 122)) === 0) },
      y: { domain: parts, label: null, tickSize: 0 },
      marks: [
        ...marks(side),
        Plot.cell(cells, Plot.pointer({ ...side, fill: "none", stroke: "currentColor", strokeWidth: 2 })),
        ...(chosen ? [Plot.cell([chosen], { ...side, fill: "none", stroke: "currentColor", strokeWidth: 3 })] : []),
      ],
    };
  }

  // A map of a quantity: the stronger the tint, the larger it is.
  function heat(width, key, { log = false, text }) {
    const cells = target.cells.filter((cell) => cell[key] !== null);
    const scaled = (value) => (log ? Math.log(Math.max(value, 1e-12)) : value);
    const values = cells.map((cell) => scaled(cell[key]));
    const [low, high] = [log ? Math.min(...values) : 0, Math.max(...values)];
    const strength = (cell) => 0.05 + 0.5 * (high > low ? (scaled(cell[key]) - low) / (high - low) : 0);
    const wide = (width - 122) / columns.length >= 34;
    return options(width, cells, (side) => [
      Plot.cell(cells, { ...side, fill: "var(--accent)", fillOpacity: { value: strength, scale: null }, stroke: "var(--line)", strokeWidth: 0.5 }),
      ...(wide ? [Plot.text(cells, { ...side, text: (cell) => text(cell[key]), fill: "currentColor", fontSize: 11 })] : []),
    ]);
  }

  function states(width) {
    const cells = target.cells.filter((cell) => cell.state);
    const size = Math.min(11, Math.max(7, (0.8 * (width - 122)) / columns.length));
    const tint = (cell) => `var(--${tints[cell.state]})`;
    return options(width, cells, (side) => [
      Plot.cell(cells, { ...side, fill: { value: tint, scale: null }, fillOpacity: 0.18, stroke: { value: tint, scale: null }, strokeWidth: 0.5 }),
      Plot.text(cells, { ...side, text: "sign", fill: "currentColor", fontSize: size }),
    ]);
  }

  function map(row, title, label, draw) {
    const figure = page.element("figure", {}, page.element("figcaption", {}, title));
    row.append(figure);
    charts.push(page.chart(figure, label, draw));
  }

  const shown = page.element("p", { className: "cell muted", "aria-live": "polite" });
  const hint = "Point at a cell, or use the arrow keys, to see what is known of it.";

  // Plot says which cell is under the pointer.
  function point(event) {
    const cell = event.target.value ?? chosen;
    shown.textContent = cell ? described(cell).join(". ") : hint;
  }

  function move(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [x, y] = steps[event.key];
    let [i, k] = chosen ? [columns.indexOf(column(chosen)), parts.indexOf(chosen.part)] : [x < 0 ? columns.length : -x, y < 0 ? parts.length : -y];
    let next;
    do {
      [i, k] = [i + x, k + y];
      next = target.cells.find((cell) => column(cell) === columns[i] && cell.part === parts[k]);
    } while (!next && i >= 0 && k >= 0 && i < columns.length && k < parts.length);
    if (!next) return;
    chosen = next;
    shown.textContent = described(chosen).join(". ");
    for (const each of charts) each.redraw();
  }

  function draw() {
    charts = [];
    chosen = null;
    parts = data.parts.filter((part) => target.cells.some((cell) => cell.part === part));
    shown.textContent = hint;
    const row = page.element("div", { className: "row", tabIndex: 0, role: "group", "aria-label": `Layers and parts of ${target.name}; the arrow keys move from cell to cell`, onkeydown: move, oninput: point });
    holder.querySelector(".row")?.remove();
    holder.insertBefore(row, shown);
    const count = (state) => target.cells.filter((cell) => cell.state === state).length;
    if (target.sensitive) map(row, "Output error, each value alone (log scale)", `Output error of each part of ${target.name}; figures in the table`, (width) => heat(width, "error", { log: true, text: (v) => v.toExponential(0) }));
    if (target.profiled) map(row, `Time, ${target.total_ms.toPrecision(3)} ms in all`, `Time of each part of ${target.name}; figures in the table`, (width) => heat(width, "ms", { text: (v) => v.toPrecision(2) }));
    map(row, "What is 8-bit", `What is 8-bit of ${target.name}: ${count("int8")} parts, ${count("fallback")} more computed in float, ${count("float")} float`, states);
  }

  const header = ["layer", "part", "plan", "error", "ms", "share", "integer", "operators", "why"];
  const controls = page.element("div", { className: "controls" });
  if (data.targets.length > 1) {
    const select = page.element("select", { onchange: () => { target = data.targets[select.selectedIndex]; draw(); } }, ...data.targets.map((each) => page.element("option", {}, each.name)));
    controls.append(page.element("label", {}, "Target ", select), " ");
  }
  controls.append(page.csv("layers.csv", ["target", ...header], () => data.targets.flatMap((each) => each.cells.map((cell) => [each.name, ...header.map((key) => cell[key])]))));
  holder.append(controls, shown);
  draw();
});
