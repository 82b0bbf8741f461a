// Requests to the server of this page. Addresses are relative to the page, so that they have its token.

// Post a question or a file, and pass each line of the answer on as it comes. Throws an Error with a sentence for people.
// Where signal aborts, the server ends the work, too.
export async function post(path, body, { signal, onEvent }) {
  const headers = typeof body === "string" ? { "Content-Type": "application/json" } : {};
  const response = await reached(fetch(path, { method: "POST", body, headers, signal }));
  if (!response.ok) throw new Error(await problem(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const event of lines.map((line) => JSON.parse(line))) {
      if (event.error) throw new Error(event.error);
      onEvent(event);
    }
  }
}

export async function get(path) {
  const response = await reached(fetch(path));
  if (!response.ok) throw new Error(await problem(response));
  return response.json();
}

async function problem(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error;
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

// A network error as a sentence; an abort stays one.
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("octobert compare does not answer any more: start it again, and open the address that it prints.");
  }
}

export function wasCancelled(error) {
  return error.name === "AbortError";
}
