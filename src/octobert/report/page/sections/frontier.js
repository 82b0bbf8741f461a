// Quality against cost: boxes of both intervals, the frontier, and limits that the reader drags, on the lines or with sliders.
(() => {
  const { shown, keeps, winner, options, details, figure } = frontierChart;
  // Pixels around a line of a limit within which a pointer drags it.
  const NEAR = 10;
  // About so many steps has a slider.
  const STEPS = 100;

  page.draw("frontier", (root, data) => {
    const view = { data, shape: 0, x: data.x[0].limit, y: data.y.limit, focus: -1, scales: null };
    const figure = root.querySelector("figure");
    const chart = page.chart(figure, label(data), (width) => options(view, width));
    const said = figure.appendChild(page.element("p", { className: "hidden", "aria-live": "polite" }));
    const sliders = controls(root, view, update);
    draggable(figure.querySelector(".chart"), view, update);
    walkable(figure.querySelector(".chart"), view, (text) => { said.textContent = text; chart.redraw(); });

    function update() {
      sliders();
      tell(root.querySelector(".winner"), view);
      chart.redraw();
    }
    update();
  });

  function label(data) {
    const names = data.points.filter((point) => point.y).map((point) => point.name);
    return `${data.y.title} against ${data.x[0].title}, for ${names.length} candidates: ${names.join(", ")}`;
  }

  // A menu of shapes, a slider for each limit, and the figures as a file. Returns how the sliders follow the limits.
  function controls(root, view, update) {
    const { data } = view;
    const holder = root.querySelector(".limits");
    const parts = [];
    if (data.x.length > 1) {
      const menu = page.element("select", { onchange: () => { view.shape = menu.selectedIndex; view.x = null; update(); } },
        ...data.x.map((axis) => page.element("option", {}, axis.name)));
      parts.push(page.element("label", {}, "Batch × tokens ", menu));
    }
    const followers = ["y", "x"].map((which) => {
      const output = page.element("output");
      const name = `Limit of ${which === "x" ? axisOf(view, which).title : axisOf(view, which).name}`;
      const input = page.element("input", { type: "range", step: 1, "aria-label": name });
      input.addEventListener("input", () => { view[which] = grid(axisOf(view, which)).limit(Number(input.value)); update(); });
      parts.push(page.element("label", { className: "limit" }, output, input));
      return () => {
        const axis = axisOf(view, which);
        const { first, last, place } = grid(axis);
        Object.assign(input, { min: first, max: last });
        input.value = place(view[which]);
        output.textContent = words(axis, view[which], which);
        input.setAttribute("aria-valuetext", output.textContent);
      };
    });
    const header = ["name", "state", "shape", "unit", "cost", "cost low", "cost high", data.y.title, "low", "high", "on frontier", "command"];
    parts.push(page.csv("candidates.csv", header, () => data.points.flatMap((p) => data.x.map((axis, n) => [
      p.name, p.state, axis.name, axis.unit, ...(p.x[n] ?? ["", "", ""]), ...(p.y ?? ["", "", ""]), p.front[n], p.command]))));
    holder.append(...parts);
    return () => followers.forEach((follow) => follow());
  }

  function axisOf({ data, shape }, which) {
    return which === "x" ? data.x[shape] : data.y;
  }

  // The round values of an axis that a limit can have, by their number; at the end where everything is kept there is none.
  function grid({ low, high, more, logarithmic }) {
    const rough = (high - low) / STEPS;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const first = logarithmic ? 0 : Math.ceil(low / step);
    const last = logarithmic ? STEPS : Math.floor(high / step);
    const loose = more ? first : last;
    const value = (n) => (logarithmic ? Number((low * (high / low) ** (n / STEPS)).toPrecision(3)) : Number((n * step).toPrecision(10)));
    const number = (limit) => Math.round(logarithmic ? STEPS * Math.log(limit / low) / Math.log(high / low) : limit / step);
    const place = (limit) => (limit === null ? loose : Math.min(last, Math.max(first, number(limit))));
    return { first, last, place, limit: (n) => (n === loose ? null : value(n)) };
  }

  function words(axis, limit, which) {
    const name = which === "x" ? axis.title.replace(` in ${axis.unit}`, "") : axis.name;
    if (limit === null) return `${name}: any`;
    const amount = (value, sign = "") => `${sign}${figure(value)} ${axis.unit === "points" && Math.abs(value) === 1 ? "point" : axis.unit}`.trim();
    if (axis.change && limit > 0) return `${name}: at least ${amount(limit, "+")}`;
    if (axis.change) return limit < 0 ? `${name}: at most ${amount(limit)}` : `${name}: no drop`;
    return `${name}: at ${axis.more ? "least" : "most"} ${amount(limit)}`;
  }

  function tell(panel, view) {
    const { data, shape, x, y } = view;
    const best = winner(data, shape, view);
    const given = ["y", "x"].filter((which) => view[which] !== null).map((which) => words(axisOf(view, which), view[which], which));
    const start = given.length ? `${given.join(", ")} → ` : "Without limits → ";
    if (!best) {
      panel.replaceChildren(page.element("p", { className: "within" }, start, page.element("b", {}, "no candidate keeps this")));
      return;
    }
    const unclear = [["x", best.x[shape]], ["y", best.y]].some(([which, ends]) =>
      view[which] !== null && ends.slice(1).some((end) => !keeps(axisOf(view, which), end, view[which])));
    const point = { ...best, x: best.x[shape] };
    panel.replaceChildren(
      page.element("p", { className: "within" }, start, page.element("b", {}, best.name), unclear ? " (its interval reaches beyond the limit)" : ""),
      page.element("p", { className: "muted" }, details(point, view).slice(1).join("; ")),
    );
    if (best.command) {
      const command = page.element("pre", { className: "command" }, best.command);
      panel.append(command);
      page.copyable(command);
    }
  }

  // Dragging the line of a limit in the chart.
  function draggable(holder, view, update) {
    let held = null;
    const place = (event) => {
      const box = holder.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const near = (at) => ["y", "x"].find((which) => {
      const axis = axisOf(view, which);
      const loose = axis.more ? axis.low : axis.high;
      return Math.abs(view.scales[which].apply(view[which] ?? loose) - at[which]) < NEAR;
    });
    holder.addEventListener("pointerdown", (event) => {
      held = near(place(event)) ?? null;
      if (held === null) return;
      holder.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    holder.addEventListener("pointermove", (event) => {
      const at = place(event);
      const over = held ?? near(at);
      holder.style.cursor = over ? (over === "x" ? "ew-resize" : "ns-resize") : "";
      if (held === null) return;
      const { limit, place: placed } = grid(axisOf(view, held));
      view[held] = limit(placed(view.scales[held].invert(at[held])));
      update();
    });
    for (const end of ["pointerup", "pointercancel"]) holder.addEventListener(end, () => { held = null; });
  }

  // Arrow keys go from candidate to candidate, in the order of their cost.
  function walkable(holder, view, say) {
    holder.tabIndex = 0;
    holder.setAttribute("role", "group");
    holder.setAttribute("aria-label", "Candidates; arrow keys go from one to the next");
    holder.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") view.focus = -1;
      else if (!step) return;
      event.preventDefault();
      const points = shown(view).sort((a, b) => a.x[0] - b.x[0]);
      const now = points.findIndex((point) => point.index === view.focus);
      const next = step ? points[(now + step + points.length) % points.length] : null;
      view.focus = next ? next.index : -1;
      say(next ? details(next, view).join("; ") : "");
    });
  }
})();
