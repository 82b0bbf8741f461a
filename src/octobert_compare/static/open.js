// Both models are opened as soon as a package is chosen, so that the first question need not wait for them.
import { post, wasCancelled } from "./api.js";
import { clear, fail, onModel, reopened } from "./state.js";

const status = document.getElementById("opened");
let work = null;

onModel(async (model) => {
  work?.abort();
  work = new AbortController();
  clear();
  status.textContent = "Opening both models … A question that is asked now waits until they are open.";
  try {
    await post("open", JSON.stringify({ model: model.name }), { signal: work.signal, onEvent: (found) => {
      reopened(found);
      status.textContent = `Open: ${found.sides.map((side) => side.title).join(" and ")}.`;
    } });
  } catch (error) {
    if (wasCancelled(error)) return;
    status.textContent = "";
    fail(error);
  }
});
