// What all sections use: the data, charts that fit their width, tables that sort, and CSV files; tabs and the theme.
const page = (() => {
  const drawers = new Map();
  const charts = [];

  // Register how a section is drawn: draw(root, data), with the section's element and its data.
  function draw(name, drawer) {
    drawers.set(name, drawer);
  }

  // An element with properties and children; texts stay texts.
  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made && name !== "list") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  // A chart in a figure, drawn again where its width changes. options(width) are Plot's; label says what a screen reader reads.
  // The height is kept while it is drawn, so that nothing below moves.
  function chart(figure, label, options) {
    const holder = element("div", { className: "chart" });
    figure.prepend(holder);
    let drawn = 0;
    const redraw = () => {
      const width = Math.floor(holder.clientWidth);
      if (!width || width === drawn) return;
      drawn = width;
      const plot = Plot.plot({ width, style: { background: "transparent", color: "currentColor", fontSize: "12px" }, ...options(width) });
      // The pictures of a legend come before the chart.
      const svg = plot.tagName === "svg" ? plot : [...plot.querySelectorAll("svg")].at(-1);
      // Plot names its marks for screen readers, which read a picture as a whole.
      for (const mark of plot.querySelectorAll("g[aria-label]")) {
        mark.dataset.mark = mark.getAttribute("aria-label");
        mark.removeAttribute("aria-label");
      }
      (svg ?? plot).setAttribute("role", "img");
      (svg ?? plot).setAttribute("aria-label", label);
      holder.style.minHeight = `${plot.getBoundingClientRect().height || holder.clientHeight}px`;
      holder.replaceChildren(plot);
      holder.style.minHeight = "";
    };
    new ResizeObserver(redraw).observe(holder);
    charts.push(redraw);
    redraw();
    return { redraw: () => { drawn = 0; redraw(); } };
  }

  // A button that saves rows (arrays, or objects with the keys of header) as a CSV file.
  function csv(name, header, rows) {
    const save = () => {
      const lines = [header, ...rows().map((row) => (Array.isArray(row) ? row : header.map((key) => row[key])))];
      const text = lines.map((line) => line.map(quoted).join(",")).join("\r\n");
      const url = URL.createObjectURL(new Blob(["\ufeff", text, "\r\n"], { type: "text/csv;charset=utf-8" }));
      element("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    };
    return element("button", { type: "button", className: "csv", onclick: save }, `CSV of ${name.replace(/\.csv$/, "").replaceAll("-", " ")}`);
  }

  // A button beside a command (pre.command) that copies it.
  function copyable(command) {
    const text = element("code", {}, ...command.childNodes);
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        // Without the permission, the text is selected for the keyboard.
        getSelection().selectAllChildren(text);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    };
    const button = element("button", { type: "button", onclick: copy, "aria-label": "Copy the command" }, "Copy");
    command.replaceChildren(text, button);
  }

  // A value of a CSV file. A leading sign that a spreadsheet would read as a formula gets an apostrophe, unless it is a number.
  function quoted(value) {
    let text = value === null || value === undefined ? "" : String(value);
    if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  // Tables with the class sortable sort by a click on a heading; numbers by their first number, or by data-value of a cell.
  function sortable(table) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, index) => {
      const button = element("button", { type: "button", className: "sort" }, ...heading.childNodes);
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        const descending = heading.getAttribute("aria-sort") === "ascending";
        headings.forEach((each) => each.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const body = table.tBodies[0];
        const keyed = [...body.rows].map((row) => [sortKey(row.cells[index]), row]);
        keyed.sort(([a], [b]) => compare(a, b) * (descending ? -1 : 1));
        body.append(...keyed.map(([, row]) => row));
      });
    });
  }

  function sortKey(cell) {
    const text = cell?.dataset.value ?? cell?.textContent.trim() ?? "";
    const number = Number.parseFloat(text.replaceAll(",", "").replace("−", "-"));
    return Number.isNaN(number) ? text.toLowerCase() : number;
  }

  // Empty cells come last among texts; numbers come before texts.
  function compare(a, b) {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? -1 : 1;
  }

  async function unpacked() {
    const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // One run is shown at a time; all are printed. Arrow keys move between the tabs, as everywhere.
  function tabs(list) {
    const all = [...list.children];
    const panels = all.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
    const select = (chosen) => all.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === chosen));
      tab.tabIndex = index === chosen ? 0 : -1;
      panels[index].hidden = index !== chosen;
    });
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    all.forEach((tab, index) => {
      tab.addEventListener("click", () => select(index));
      tab.addEventListener("keydown", ({ key }) => {
        if (!(key in steps)) return;
        const step = steps[key];
        const next = Number.isFinite(step) ? (index + step + all.length) % all.length : step < 0 ? 0 : all.length - 1;
        select(next);
        all[next].focus();
      });
    });
    // A link to a section of a run that is not shown.
    const follow = () => {
      const target = location.hash && document.getElementById(location.hash.slice(1));
      const run = target ? panels.findIndex((panel) => panel.contains(target)) : -1;
      if (run >= 0) select(run);
      if (run >= 0) target.scrollIntoView();
    };
    addEventListener("hashchange", follow);
    addEventListener("beforeprint", () => panels.forEach((panel) => { panel.hidden = false; }));
    addEventListener("afterprint", () => select(all.findIndex((tab) => tab.getAttribute("aria-selected") === "true")));
    select(0);
    follow();
  }

  // What is folded is printed, too.
  function printable() {
    let folded = [];
    addEventListener("beforeprint", () => {
      folded = [...document.querySelectorAll("details:not([open])")];
      folded.forEach((each) => { each.open = true; });
      charts.forEach((redraw) => redraw());
    });
    addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
  }

  // The button says which theme it changes to.
  function theme(button) {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      name();
    });
    system.addEventListener("change", name);
    name();
  }

  // What scrolls sideways can be reached and scrolled by the keyboard.
  function scrollable() {
    const seen = new ResizeObserver((changes) => {
      for (const { target } of changes) {
        const wide = target.scrollWidth > target.clientWidth;
        target.classList.toggle("wide", wide);
        if (wide) target.tabIndex = 0;
        else target.removeAttribute("tabindex");
      }
    });
    document.querySelectorAll(".scroll, pre").forEach((each) => seen.observe(each));
  }

  async function start() {
    theme(document.querySelector("button.theme"));
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.querySelectorAll("pre.command").forEach(copyable);
    document.querySelectorAll("[role=tablist].tabs").forEach(tabs);
    printable();
    const { runs, comparison } = await unpacked();
    const own = (section, data) => {
      const name = section.dataset.section;
      if (data && drawers.has(name)) drawers.get(name)(section, data);
    };
    document.querySelectorAll(".comparison").forEach((section) => own(section, comparison));
    for (const run of document.querySelectorAll(".run")) {
      const data = runs[Number(run.dataset.run)];
      run.querySelectorAll("[data-section]").forEach((section) => own(section, data[section.dataset.section]));
    }
    scrollable();
    document.documentElement.dataset.drawn = "true";
  }

  return { draw, element, chart, csv, copyable, sortable, start };
})();
