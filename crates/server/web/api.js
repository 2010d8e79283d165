// The server's HTTP interface, as far as the page uses it.

const base = new URL("v1/", document.baseURI);

/** What went wrong, in the server's words where it said something. */
export class ApiError extends Error {
  constructor(title, message, details = {}) {
    super(message);
    this.title = title;
    Object.assign(this, details);
  }
}

async function request(path, key, init = {}) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (init.body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, base), { cache: "no-store", credentials: "same-origin", ...init, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      "No connection to the server",
      `Nothing answers at ${base.host}. Is wootz still running there?`,
      { offline: true },
    );
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const body = await response.text().catch(() => "");
  let error = {};
  try {
    const data = JSON.parse(body);
    error = typeof data.error === "string" ? { message: data.error } : (data.error ?? data);
  } catch {
    error = { message: body.trim().startsWith("<") ? "" : body.trim().slice(0, 2000) };
  }
  const titles = {
    401: "The server wants an API key",
    403: "The server refuses this",
    404: "Not found",
    429: "The server is busy",
    503: "The server is not ready",
  };
  const title = titles[status] ?? (status >= 500 ? "The server failed" : "The server refused the request");
  let message = error.message || `It gave no reason (status ${status}).`;
  const wait = Number(response.headers.get("retry-after"));
  if (wait > 0) message += ` Try again in ${wait} s.`;
  return new ApiError(`${title} (${status})`, message, { status });
}

/** The models of the server: `{id}` and what else it tells. */
export async function listModels(key) {
  const response = await request("models", key);
  const { data } = await response.json();
  return (data ?? []).filter((model) => typeof model?.id === "string");
}

/** Sends a chat request and gives the parts of the answer as they come. */
export async function* chat(body, key, signal) {
  const response = await request("chat/completions", key, { method: "POST", body: JSON.stringify(body), signal });
  if (!/^text\/event-stream/i.test(response.headers.get("content-type") ?? "")) {
    const whole = await response.json();
    yield { ...whole, choices: (whole.choices ?? []).map((choice) => ({ ...choice, delta: choice.message })) };
    return;
  }
  let ended = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    let part;
    try {
      part = JSON.parse(data);
    } catch {
      throw new ApiError(
        "The answer cannot be read",
        `The server sent an event that is not JSON: ${data.slice(0, 200)}`,
      );
    }
    if (part.error) {
      const message = typeof part.error === "string" ? part.error : part.error.message;
      throw new ApiError("The server failed while it answered", message || "It gave no reason.");
    }
    ended ||= part.choices?.some((choice) => choice.finish_reason);
    yield part;
  }
  if (!ended) throw new ApiError("The answer broke off", "The connection ended before the answer was complete.");
}

/** The data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done) return;
      rest += value;
      // A carriage return at the end may be half of a line break.
      const whole = rest.endsWith("\r") ? rest.slice(0, -1) : rest;
      const lines = whole.split(/\r\n|\r|\n/);
      rest = lines.pop() + rest.slice(whole.length);
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection broke", "The server went away before the answer was complete.", {
      offline: true,
    });
  }
}
