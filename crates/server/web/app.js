// The chat page: what happens when, and the state that the parts share.

import { chat, listModels } from "./api.js";
import { $, count, fit, h, prefs, say, toast } from "./dom.js";
import { Panel, requestFields, savedDefaults } from "./panel.js";
import { Sidebar } from "./sidebar.js";
import { Store, addNode, choose, newConversation, path, removeNode, toMessages, upTo } from "./store.js";
import { Thread } from "./thread.js";

const phone = matchMedia("(max-width: 820px)");
const narrow = matchMedia("(max-width: 1180px)");
const touch = matchMedia("(pointer: coarse)");
const mac = /Mac|iPhone|iPad/.test(navigator.platform);

class App {
  async start() {
    this.runs = new Map(); // conversation id -> what answers there
    this.contexts = new Map(); // model -> tokens that its context holds
    this.store = new Store();
    this.store.onfail = (error) => toast(`The browser does not keep conversations: ${error?.message ?? error}`);
    this.store.busy = (id) => this.runs.has(id);
    this.store.onchange = (id) => this.changedElsewhere(id);
    this.conv = newConversation(savedDefaults());
    this.thread = new Thread({
      answer: (node) => this.answer(this.conv, node),
      resume: (node) => this.answer(this.conv, node, node),
      regenerate: (node) => this.regenerate(node),
      edit: (node, text) => this.send(text, node.parent),
      remove: (node) => this.removeMessage(node),
      choose: (node) => this.choose(node),
      results: (node, texts) => this.sendResults(node, texts),
      askKey: () => this.openPanel(true, $("key")),
    });
    this.panel = new Panel(this);
    this.sidebar = new Sidebar(this);
    this.bind();
    this.layout();
    await this.store.open();
    this.open(location.hash.slice(1), "replace");
    this.loadModels();
  }

  // -------------------------------------------------------------- conversations

  running(id) {
    return this.runs.has(id);
  }

  /** Shows a conversation, or a new one where there is none of this id. */
  open(id, visit = "push") {
    const known = this.store.conversations.get(id);
    this.conv = known ?? newConversation({ ...savedDefaults(), model: this.conv.model });
    this.fresh = !known;
    const url = known ? `#${id}` : location.pathname + location.search;
    if (visit === "replace") history.replaceState(null, "", url);
    else if (visit === "push" && location.hash !== (known ? url : "")) history.pushState(null, "", url);
    this.thread.show(this.conv);
    $("input").value = prefs.get(this.draftKey()) ?? "";
    fit($("input"));
    this.showModel();
    this.panel.show();
    this.refresh();
    if (phone.matches) this.openSide(false);
    else if (!touch.matches) $("input").focus();
  }

  refresh() {
    this.sidebar.render();
    const running = this.runs.has(this.conv.id);
    $("send").classList.toggle("stop", running);
    $("send").setAttribute("aria-label", running ? "Stop" : "Send");
    $("send").title = running ? "Stop (Esc)" : "Send";
    $("send")
      .querySelector("use")
      .setAttribute("href", running ? "#i-stop" : "#i-send");
    $("send").disabled = !running && !$("input").value.trim();
    this.showContext();
  }

  /** How full the model's context is after the last answer shown, where the server tells. */
  showContext() {
    const { stats } = path(this.conv).findLast((node) => node.stats?.prompt) ?? {};
    const room = this.contexts.get($("model").value);
    const used = stats ? stats.prompt + stats.tokens : 0;
    $("context").hidden = !used || !room;
    $("context").textContent = `${count(used)} of ${count(room ?? 0)} tokens of context used`;
    $("context").classList.toggle("full", used > 0.9 * room);
  }

  changedElsewhere(id) {
    if (id === this.conv.id) {
      const known = this.store.conversations.get(id);
      if (!known) return this.open("", "replace");
      this.conv = known;
      this.thread.conv = known;
      this.thread.sync();
    }
    this.refresh();
  }

  async remove(conv) {
    this.stop(conv.id);
    await this.store.remove(conv.id);
    if (this.conv.id === conv.id) this.open("", "replace");
    else this.refresh();
    toast("Conversation deleted", "Undo", () => {
      this.store.save(conv);
      this.refresh();
    });
  }

  async removeAll(all) {
    for (const conv of all) {
      this.stop(conv.id);
      await this.store.remove(conv.id);
    }
    this.open("", "replace");
    toast("All conversations deleted");
  }

  settingsChanged() {
    if (!this.fresh) this.store.later(this.conv);
  }

  draftKey() {
    return `draft.${this.fresh ? "new" : this.conv.id}`;
  }

  keepDraft() {
    prefs.set(this.draftKey(), $("input").value);
  }

  // -------------------------------------------------------------- messages

  /** Adds a message of the user after `parent` (the end, if left out) and has it answered. */
  send(text, parent) {
    const { conv } = this;
    this.stop(conv.id);
    const last = parent === undefined ? (path(conv).at(-1)?.id ?? null) : parent;
    const node = addNode(conv, last, { role: "user", content: text });
    if (this.fresh) {
      this.fresh = false;
      history.pushState(null, "", `#${conv.id}`);
    }
    this.answer(conv, node);
  }

  regenerate(node) {
    this.stop(this.conv.id);
    const parent = this.conv.nodes.get(node.parent);
    if (!parent) return;
    // A failure that left nothing behind is not worth a branch.
    if (node.error && !node.content && !node.reasoning && !node.calls?.length) removeNode(this.conv, node);
    this.answer(this.conv, parent);
  }

  choose(node) {
    choose(this.conv, node);
    this.thread.sync();
    this.store.save(this.conv);
    const view = this.thread.view(node);
    view.el.querySelector(".versions button:not(:disabled)")?.focus();
  }

  removeMessage(node) {
    const { conv } = this;
    this.stop(conv.id);
    const before = structuredClone({ next: conv.next, nodes: conv.nodes });
    removeNode(conv, node);
    const changed = () => {
      this.store.save(conv);
      if (this.conv === conv) this.thread.sync();
      this.refresh();
    };
    changed();
    toast("Message deleted", "Undo", () => {
      if (this.runs.has(conv.id)) this.stop(conv.id);
      Object.assign(conv, before);
      changed();
    });
  }

  sendResults(node, texts) {
    let last = node;
    node.calls.forEach((call, i) => {
      last = addNode(this.conv, last.id, { role: "tool", content: texts[i], callId: call.id });
    });
    this.answer(this.conv, last);
  }

  stop(id) {
    const run = this.runs.get(id);
    if (!run) return;
    run.abort.abort();
    // At once, not when the network notices: what follows may change the conversation.
    this.finish(run, "stopped");
  }

  /** Has the model answer `last` and shows the answer as it comes; it goes on with `last` if that is an answer too. */
  async answer(conv, last, resumed) {
    const model = $("model").value;
    const messages = toMessages(conv, upTo(conv, last));
    const node = resumed ?? addNode(conv, last.id, { role: "assistant", model });
    Object.assign(node, { state: "live", finish: undefined, error: undefined });
    const run = { conv, node, abort: new AbortController(), sent: performance.now(), parts: 0 };
    this.runs.set(conv.id, run);
    conv.model = model;
    this.store.save(conv);
    if (this.conv === conv) {
      this.thread.sync();
      this.thread.toEnd();
    }
    this.refresh();
    say("The model answers");
    const body = { ...requestFields(conv.params), messages, stream: true, stream_options: { include_usage: true } };
    if (model) body.model = model;
    try {
      for await (const part of chat(body, prefs.get("key"), run.abort.signal)) {
        if (run.over) return;
        this.take(run, part);
        this.store.later(conv);
        this.thread.changed(node);
      }
      this.finish(run, "done");
    } catch (error) {
      this.finish(run, "error", error);
    }
  }

  /** Adds a part of an answer to its message. */
  take(run, part) {
    const { node } = run;
    if (part.usage) run.usage = part.usage;
    if (part.timings) run.timings = part.timings;
    if (part.model) node.model ||= part.model;
    const choice = part.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (content || reasoning || calls?.length) {
      run.last = performance.now();
      run.first ??= run.last;
      run.parts++;
    }
    if (reasoning) {
      run.thought ??= run.last;
      node.reasoning = (node.reasoning ?? "") + reasoning;
    }
    if ((content || calls?.length) && run.thought) node.thinkMs ??= run.last - run.thought;
    if (content) node.content += content;
    for (const call of calls ?? []) takeCall((node.calls ??= []), call);
    if (choice.finish_reason) node.finish = choice.finish_reason;
    node.stats = measure(run);
  }

  finish(run, state, error) {
    if (run.over) return;
    run.over = true;
    const { conv, node } = run;
    this.runs.delete(conv.id);
    node.state = state;
    node.stats = measure(run);
    if (run.thought && run.last) node.thinkMs ??= run.last - run.thought;
    if (state === "error") {
      node.error = { title: error.title ?? "The page failed", message: error.message, status: error.status };
      if (!error.title) console.error(error);
    }
    conv.updated = Date.now();
    if (this.store.conversations.get(conv.id) === conv) this.store.save(conv);
    if (this.conv === conv) {
      this.thread.sync();
      this.thread.follow();
    }
    this.refresh();
    if (state === "error") say(`${node.error.title}. ${node.error.message}`);
    else say(state === "stopped" ? "Stopped" : node.content.length < 600 ? node.content : "The answer is complete");
  }

  // -------------------------------------------------------------- models

  async loadModels() {
    try {
      const models = await listModels(prefs.get("key"));
      this.contexts = new Map(models.map(({ id, meta }) => [id, meta?.n_ctx]));
      $("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
      if (!models.length) $("model").append(new Option("No model", ""));
      this.banner();
    } catch (error) {
      this.banner(error);
    }
    this.showModel();
  }

  showModel() {
    const wanted = this.conv.model || prefs.get("model");
    const ids = [...$("model").options].map((option) => option.value);
    $("model").value = ids.includes(wanted) ? wanted : (ids[0] ?? "");
    this.showContext();
  }

  banner(error) {
    $("banner").hidden = !error;
    if (!error) return $("banner").replaceChildren();
    const [label, onclick] =
      error.status === 401
        ? ["Enter the API key", () => this.openPanel(true, $("key"))]
        : ["Try again", () => this.loadModels()];
    $("banner").replaceChildren(
      h("p", {}, h("strong", {}, error.title ?? "The models cannot be listed"), ` ${error.message}`),
      h("button", { class: "btn", type: "button", onclick }, label),
    );
  }

  // -------------------------------------------------------------- the page

  bind() {
    const input = $("input");
    input.addEventListener("input", () => {
      fit(input);
      this.keepDraft();
      $("send").disabled = !this.runs.has(this.conv.id) && !input.value.trim();
    });
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey && !touch.matches) {
        event.preventDefault();
        if (!this.runs.has(this.conv.id)) $("composer").requestSubmit();
      } else if (event.key === "ArrowUp" && !input.value && this.thread.editLast()) {
        event.preventDefault();
      }
    });
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.runs.has(this.conv.id)) return this.stop(this.conv.id);
      const text = input.value.trim();
      if (!text) return;
      prefs.set(this.draftKey(), "");
      input.value = "";
      fit(input);
      this.send(text);
    });
    for (const id of ["new", "new-top"]) $(id).addEventListener("click", () => this.open("", "push"));
    $("model").addEventListener("change", () => {
      prefs.set("model", $("model").value);
      this.showContext();
      this.conv.model = $("model").value;
      this.settingsChanged();
    });
    $("side-open").addEventListener("click", () => this.openSide(true));
    $("side-close").addEventListener("click", () => this.openSide(false));
    $("panel-open").addEventListener("click", () => this.openPanel($("panel").hidden));
    $("panel-close").addEventListener("click", () => this.openPanel(false));
    $("scrim").addEventListener("click", () => (this.openPanel(false), phone.matches && this.openSide(false)));
    addEventListener("popstate", () => this.open(location.hash.slice(1), "none"));
    addEventListener("keydown", (event) => this.key(event));
    for (const query of [phone, narrow]) query.addEventListener("change", () => this.layout());
    addEventListener("pagehide", () => this.runs.forEach((run) => this.store.save(run.conv)));
    for (const id of ["search-key", "search-key-2"]) if (mac) $(id).textContent = "⌘ K";
  }

  key(event) {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      this.openPanel(false);
      this.openSide(true);
      $("search").focus();
      $("search").select();
    } else if (event.key === "Escape" && !event.defaultPrevented && !$("menu").matches(":popover-open")) {
      const overlay = !$("scrim").hidden;
      if (overlay) {
        if (!$("panel").hidden) this.openPanel(false);
        else this.openSide(false);
      } else if (this.runs.has(this.conv.id)) {
        this.stop(this.conv.id);
      } else if (!$("panel").hidden) {
        this.openPanel(false);
      } else {
        $("input").focus();
      }
    }
  }

  openSide(open) {
    if (phone.matches) this.sideOver = open;
    else prefs.set("side", open ? "open" : "closed");
    this.layout();
    if (!open && $("sidebar").contains(document.activeElement)) $("side-open").focus();
    if (open && phone.matches) $("side-close").focus();
  }

  openPanel(open, focus) {
    const was = !$("panel").hidden;
    $("panel").hidden = !open;
    $("panel-open").setAttribute("aria-expanded", open);
    this.layout();
    if (open) {
      if (phone.matches) this.openSide(false);
      (focus ?? $("panel-close")).focus();
    } else if (was) $("panel-open").focus();
  }

  /** Which parts lie beside the messages and which over them; what is covered cannot be reached by keys. */
  layout() {
    const side = phone.matches ? Boolean(this.sideOver) : prefs.get("side") !== "closed";
    $("sidebar").classList.toggle("closed", !side);
    $("sidebar").inert = !side;
    $("side-open").hidden = $("new-top").hidden = side && !phone.matches;
    const panelOver = !$("panel").hidden && narrow.matches;
    const sideOver = side && phone.matches;
    $("scrim").hidden = !panelOver && !sideOver;
    $("main").inert = panelOver || sideOver;
    if (panelOver) $("sidebar").inert = true;
  }
}

/** What is known about the speed of an answer: the server's figures, or else measured here. */
function measure(run) {
  const { usage, timings } = run;
  const reported = usage?.completion_tokens ?? timings?.predicted_n;
  const tokens = reported ?? run.parts;
  const span = (run.last ?? 0) - (run.first ?? 0);
  const stats = { tokens, rate: timings?.predicted_per_second ?? (span > 50 ? ((tokens - 1) / span) * 1000 : 0) };
  if (reported === undefined) stats.estimated = 1;
  if (run.first) stats.first = run.first - run.sent;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
  const prompt = usage?.prompt_tokens ?? (timings && (timings.prompt_n ?? 0) + (timings.cache_n ?? 0));
  if (prompt) stats.prompt = prompt;
  if (cached) stats.cached = cached;
  if (timings?.prompt_per_second) stats.promptRate = timings.prompt_per_second;
  return stats;
}

/** Adds a piece of a tool call to those of the message. */
function takeCall(calls, piece) {
  const at = piece.index ?? calls.length;
  const call = (calls[at] ??= { id: "", name: "", arguments: "" });
  if (piece.id) call.id = piece.id;
  call.id ||= `call_${at}`;
  call.name ||= piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

new App().start();
