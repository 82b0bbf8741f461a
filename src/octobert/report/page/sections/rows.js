// The list of rows that changed: filters, order, pages of 50, and for each row its texts and both answers.
page.draw("rows", (() => {
  const PAGE = 50;
  const OUTCOMES = { lost: "worse", gained: "better", other: "neither" };
  const SIGNS = { lost: "▼", gained: "▲", other: "●" };
  const ORDERS = {
    worst: (a, b) => b.change - a.change || a.row - b.row,
    best: (a, b) => a.change - b.change || a.row - b.row,
    row: (a, b) => a.row - b.row,
    short: (a, b) => a.length - b.length || a.row - b.row,
    long: (a, b) => b.length - a.length || a.row - b.row,
  };
  const { element } = page;

  // A text with marks: { start, end, kind, label }. Places are counted in characters as Python does, not in UTF-16 units.
  function marked(text, marks) {
    const points = [...text];
    const ends = [...new Set([0, points.length, ...marks.flatMap((mark) => [mark.start, mark.end])])].sort((a, b) => a - b);
    const parts = [];
    for (let i = 0; i + 1 < ends.length; i += 1) {
      const part = points.slice(ends[i], ends[i + 1]).join("");
      const own = marks.filter((mark) => mark.start <= ends[i] && ends[i + 1] <= mark.end);
      const label = own.filter((mark) => mark.label && mark.end === ends[i + 1]).map((mark) => mark.label).join(", ");
      if (!own.length) parts.push(part);
      else {
        parts.push(element("mark", { className: own.map((mark) => mark.kind).join(" ") }, part,
          label ? element("b", {}, label) : null));
      }
    }
    return parts;
  }

  function drawer(data) {
    const colours = new Map();
    // A colour for each label, the same in all rows. The label stands beside it, so more labels may share one.
    const colour = (label) => {
      if (!colours.has(label)) colours.set(label, `entity tone${colours.size % 6}`);
      return colours.get(label);
    };

    // Marks of one text; entities that the other model has not are filled.
    const spans = (marks, text, kind, others = marks) => marks.filter(([of]) => of === text).map((mark) => {
      const [, start, end, label] = mark;
      const entity = data.labelled && label;
      const differs = entity && !others.some((other) => String(other) === String(mark));
      if (entity && data.fills) return { start, end, label: `→ ${label}`, kind: "entity tone0" };
      return { start, end, label, kind: entity ? `${colour(label)}${differs ? " differs" : ""}` : kind };
    });

    // The texts of a row. Entities are shown with the answers instead, once for each model.
    function texts(row) {
      if (data.labelled) return [];
      return row.texts.map((place, index) => {
        const marks = [...spans(row.marks, index, "expected"), ...spans(row.before.marks, index, "before"),
          ...spans(row.after.marks, index, "after")];
        return element("p", { className: "text" }, element("span", { className: "source" }, data.sources[index] ?? "text"),
          ...marked(data.texts[place], marks));
      });
    }

    function bar(name, share, chosen) {
      const fill = element("i", { className: "fill" });
      fill.style.width = `${100 * share}%`;
      return element("div", { className: chosen ? "share chosen" : "share" }, element("span", { className: "name" }, name),
        element("span", { className: "track", ariaHidden: "true" }, fill), element("span", { className: "number" }, share.toFixed(3)));
    }

    function neighbour([place, cosine, moved, right]) {
      return element("li", { className: right ? "right" : "" }, data.texts[place], " ",
        element("span", { className: "number" }, cosine.toFixed(3)),
        moved ? element("span", { className: "moved" }, moved) : null,
        right ? element("span", { className: "moved" }, "✓ expected") : null);
    }

    function answer(title, kind, row, side, other) {
      const chosen = side.scores.find(([name]) => name === side.text);
      const said = data.labelled && row.texts.length
        ? element("p", { className: "text" }, ...marked(data.texts[row.texts[0]], spans(side.marks, 0, kind, other.marks)))
        : element("p", { className: "said" }, side.text);
      const shown = [];
      if (side.scores.length) shown.push(...side.scores.map(([name, share]) => bar(name, share, name === chosen?.[0])));
      else if (side.near.length) shown.push(element("ol", { className: "near" }, ...side.near.map(neighbour)));
      else if (side.score !== null && data.shares) shown.push(bar("score", side.score, true));
      else if (side.score !== null && String(side.score) !== side.text) shown.push(element("p", {}, `score ${side.score}`));
      return element("div", { className: `answer ${kind}` }, element("p", { className: "title" }, title), said, ...shown);
    }

    function expected(row) {
      const text = data.texts[row.expected];
      if (!text) return null;
      const tagged = data.labelled && row.marks.some(([, , , label]) => label);
      const said = tagged ? element("p", { className: "text" }, ...marked(data.texts[row.texts[0]], spans(row.marks, 0, "expected")))
        : element("p", { className: text.length > 60 ? "text" : "said" }, text);
      return element("div", { className: "answer expected" }, element("p", { className: "title" }, "expected"), said);
    }

    return (row, candidate) => element("li", { className: `change ${row.outcome}` },
      element("div", { className: "head" },
        element("span", { className: `outcome ${row.outcome}` }, `${SIGNS[row.outcome]} ${OUTCOMES[row.outcome]}`),
        element("span", {}, `row ${row.row + 1}`),
        ...row.moves.map((move) => element("span", { className: "move" }, move)),
        copier(data, row, candidate)),
      ...texts(row),
      element("div", { className: "answers" }, expected(row), answer(candidate.reference, "before", row, row.before, row.after),
        answer(candidate.name, "after", row, row.after, row.before)));
  }

  // A word as a POSIX shell reads it.
  function quoted(word) {
    return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
  }

  function command(data, row, candidate) {
    const texts = row.texts.map((place) => data.texts[place]);
    const words = [...candidate.command, ...data.prompt];
    // A text may look like an option.
    if (data.form === "question") words.push(`--question=${texts[0]}`, `--context=${texts[1]}`);
    else words.push(...(data.form === "pair" ? ["--pair"] : []), ...(texts.some((t) => t.startsWith("-")) ? ["--"] : []), ...texts);
    return words.map(quoted).join(" ");
  }

  // The button that shows a row as a command and copies it; none for texts that were cut.
  function copier(data, row, candidate) {
    if (!data.form || !row.whole) return null;
    const button = element("button", { type: "button", className: "copy", title: "octobert predict …" }, "as command");
    button.addEventListener("click", () => {
      const shown = element("pre", { className: "command" }, command(data, row, candidate));
      page.copyable(shown);
      button.closest("li").append(shown);
      button.remove();
      const copy = shown.querySelector("button");
      copy.focus();
      copy.click();
    });
    return button;
  }

  const searched = (data, row) => [...row.texts.map((place) => data.texts[place]), data.texts[row.expected], row.before.text,
    row.after.text, ...row.before.near.concat(row.after.near).map(([place]) => data.texts[place])].join("\n").toLowerCase();

  function table(data, candidate, rows) {
    const header = ["row", "outcome", "change", ...data.sources, "expected", candidate.reference, `${candidate.reference} score`,
      candidate.name, `${candidate.name} score`];
    const lines = () => rows().map((row) => [row.row + 1, OUTCOMES[row.outcome], row.change, ...row.texts.map((place) => data.texts[place]),
      data.texts[row.expected], row.before.text, row.before.score, row.after.text, row.after.score]);
    return [header, lines];
  }

  return (root, data) => {
    const list = root.querySelector("ol.changes");
    if (!list) return;
    const show = drawer(data);
    const control = (name) => root.querySelector(`[data-of="${name}"]`);
    const count = root.querySelector(".count");
    const steps = [...root.querySelectorAll("[data-step]")];
    let candidate, found = [], at = 0;

    function filter() {
      const [outcome, move, order, words] = ["outcome", "move", "order", "search"].map((name) => control(name).value);
      const wanted = words.trim().toLowerCase();
      found = candidate.rows.filter((row) => (!outcome || row.outcome === outcome) && (!move || row.moves.includes(move))
        && (!wanted || (row.searched ??= searched(data, row)).includes(wanted))).sort(ORDERS[order]);
      at = 0;
      draw();
    }

    function draw() {
      const part = found.slice(at, at + PAGE);
      list.start = at + 1;
      list.replaceChildren(...part.map((row) => show(row, candidate)));
      list.scrollTop = 0;
      const all = found.length === candidate.rows.length ? "" : ` of ${candidate.rows.length.toLocaleString("en")}`;
      const range = found.length > PAGE ? `, ${(at + 1).toLocaleString("en")} to ${(at + part.length).toLocaleString("en")} shown` : "";
      count.textContent = `${found.length.toLocaleString("en")}${all} rows${range}`;
      for (const button of steps) {
        button.hidden = candidate.rows.length <= PAGE;
        const next = at + PAGE * Number(button.dataset.step);
        button.disabled = next < 0 || next >= found.length;
      }
    }

    function step(by) {
      const next = at + PAGE * by;
      if (next < 0 || next >= found.length) return;
      at = next;
      draw();
      list.focus();
    }

    function choose() {
      candidate = data.candidates[Number(control("candidate")?.value ?? 0)];
      for (const row of candidate.rows) row.length ??= row.texts.reduce((sum, place) => sum + data.texts[place].length, 0);
      const moves = [...new Set(candidate.rows.flatMap((row) => row.moves))].sort();
      control("move").replaceChildren(element("option", { value: "" }, "all"),
        ...moves.map((move) => element("option", { value: move }, move)));
      control("move").parentElement.hidden = moves.length < 2;
      const file = `changed-${candidate.name}.csv`;
      const buttons = [["CSV of these rows", () => found], ["CSV of all", () => candidate.rows]].map(([text, rows]) => {
        const button = page.csv(file, ...table(data, candidate, rows));
        button.textContent = text;
        return button;
      });
      root.querySelector(".files").replaceChildren(...buttons);
      filter();
    }

    control("candidate")?.addEventListener("change", choose);
    for (const name of ["outcome", "move", "order"]) control(name).addEventListener("change", filter);
    control("search").addEventListener("input", filter);
    for (const button of steps) button.addEventListener("click", () => step(Number(button.dataset.step)));
    list.addEventListener("keydown", (event) => {
      if (event.target === list && ["ArrowLeft", "ArrowRight"].includes(event.key)) step(event.key === "ArrowLeft" ? -1 : 1);
    });
    choose();
  };
})());
