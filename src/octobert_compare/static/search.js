// A query in a list of texts: what each model finds nearest.
import { post, wasCancelled } from "./api.js";
import { heading } from "./answers.js";
import { clear, fail, number, onModel, reopened, state } from "./state.js";
import { times } from "./times.js";

const byId = (id) => document.getElementById(id);
const { element } = page;
let work = null;

async function search(event) {
  event.preventDefault();
  clear("search-error");
  byId("nearest").replaceChildren();
  const texts = byId("list").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const asked = { model: state.model.name, texts, query: byId("query").value, prompts: [byId("query-prompt").value, byId("list-prompt").value] };
  const button = byId("searching").querySelector("button.main");
  work = new AbortController();
  button.disabled = true;
  byId("stop-search").hidden = false;
  const status = (text) => { byId("search-status").textContent = text; };
  try {
    if (!texts.length) throw new Error("There are no texts to search: write one on each line.");
    if (!asked.query.trim()) throw new Error("There is no query: write what to look for.");
    status("Opening the models …");
    let sides = [];
    await post("search", JSON.stringify(asked), { signal: work.signal, onEvent: (found) => {
      if (found.sides) {
        ({ sides } = found);
        if (reopened(found)) times.clear();
      } else if (found.nearest) {
        byId("nearest").replaceChildren(...sides.map((side) => card(side, found)));
        status(sides.length > 1 ? `${found.shared} of the nearest ${found.of} are the same.` : "");
      } else {
        status(`${number(found.done, 9)} of ${number(found.of, 9)} texts are embedded.`);
      }
    } });
  } catch (error) {
    status(wasCancelled(error) ? "Cancelled." : "");
    if (!wasCancelled(error)) fail(error, "search-error");
  } finally {
    button.disabled = false;
    byId("stop-search").hidden = true;
  }
}

function card(side, found) {
  const hits = found.nearest[side.name].map((hit, i) => {
    const elsewhere = hit.other === null || hit.other === i + 1 ? "" : `; place ${hit.other} with the other model`;
    return element("li", {}, hit.text, element("span", { className: "muted" }, ` ${hit.score.toFixed(4)}${elsewhere}`));
  });
  return element("article", { className: `side of-${side.name}` }, heading(side), element("ol", {}, ...hits),
    element("p", { className: "muted" }, `${number(d3.median(found.ms[side.name]))} ms for the query, median of ${found.ms[side.name].length}`));
}

function fit(model) {
  work?.abort();
  byId("search").hidden = model.head !== "embedding";
  byId("nearest").replaceChildren();
  byId("search-status").textContent = "";
  for (const field of byId("search").querySelectorAll(".prompt")) field.hidden = !model.prompts.length;
  for (const id of ["query-prompt", "list-prompt"]) {
    byId(id).replaceChildren(...["", ...model.prompts].map((name) => element("option", { value: name }, name || "the model's own")));
  }
}

byId("list-file").addEventListener("change", async ({ target }) => {
  byId("list").value = target.files[0] ? await target.files[0].text() : "";
});
byId("searching").addEventListener("submit", search);
byId("stop-search").addEventListener("click", () => work?.abort());
onModel(fit);
