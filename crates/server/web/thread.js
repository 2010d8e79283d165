// The messages of a conversation on the page.

import { $, copyFrom, count, fit, h, icon, iconButton, plural, rate, seconds } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { branches, path, upTo } from "./store.js";

/** Shows a conversation and keeps the newest text in view for as long as the reader is at the end. */
export class Thread {
  /** `actions` are what the buttons of a message do, each given the message. */
  constructor(actions) {
    this.actions = actions;
    this.scroller = $("scroll");
    this.el = $("thread");
    this.views = new Map();
    this.dirty = new Set();
    this.stick = true;
    this.last = 0;
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.follow()).observe(this.el);
    new ResizeObserver(() => this.follow()).observe(this.scroller);
    $("jump").addEventListener("click", () => this.toEnd());
  }

  show(conv) {
    if (this.conv === conv) return this.sync();
    this.conv = conv;
    this.views.forEach((view) => view.close());
    this.views.clear();
    this.el.replaceChildren();
    this.sync();
    this.toEnd();
  }

  /** Brings the page in line with the conversation; messages that stay keep their elements. */
  sync() {
    const nodes = path(this.conv);
    $("empty").hidden = nodes.length > 0;
    const views = nodes.map((node) => this.view(node));
    const shown = new Set(views);
    for (const [id, view] of this.views) {
      if (!shown.has(view)) view.el.remove();
      if (!this.conv.nodes.has(id)) {
        view.close();
        this.views.delete(id);
      }
    }
    let place = this.el.firstElementChild;
    views.forEach((view, i) => {
      view.sync(i === views.length - 1);
      if (view.el === place) place = place.nextElementSibling;
      else this.el.insertBefore(view.el, place);
    });
  }

  view(node) {
    const known = this.views.get(node.id);
    if (known) {
      known.node = node; // read anew where another tab wrote it; its element may hold what the reader types
      return known;
    }
    const view = new (node.role === "assistant" ? AnswerView : node.role === "tool" ? ToolView : UserView)(node, this);
    this.views.set(node.id, view);
    return view;
  }

  /** Shows a changed message with the next picture that the browser draws. */
  changed(node) {
    if (!this.conv.nodes.has(node.id)) return;
    if (this.dirty.size === 0) {
      requestAnimationFrame(() => {
        const views = [...this.dirty].map((id) => this.views.get(id));
        this.dirty.clear();
        views.forEach((view) => view?.sync());
        this.follow();
      });
    }
    this.dirty.add(node.id);
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const below = scrollHeight - clientHeight - scrollTop;
    // Any step up by the reader lets go; text that grows or shrinks does not.
    if (scrollTop < this.last - 1 && below > 4) this.stick = false;
    else if (below <= 24) this.stick = true;
    this.last = scrollTop;
    $("jump").hidden = below < 160;
  }

  follow() {
    if (this.stick) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.scrolled();
  }

  toEnd() {
    this.stick = true;
    this.follow();
  }

  /** Opens the last message of the user for editing; false if there is none. */
  editLast() {
    const node = path(this.conv).findLast((one) => one.role === "user");
    if (node) this.view(node).edit();
    return Boolean(node);
  }
}

class MessageView {
  constructor(node, thread, kind, label) {
    this.node = node;
    this.thread = thread;
    this.foot = h("div", { class: "foot" });
    this.el = h("article", { class: `msg ${kind}`, "aria-label": label, "data-id": node.id });
  }

  close() {}

  /** A button that does an action of the page to this message. */
  action(name, label, what) {
    return iconButton(name, label, () => this.thread.actions[what](this.node));
  }

  /** Whether the foot must be made anew; buttons that stay keep the focus. */
  footChanged(...facts) {
    const all = branches(this.thread.conv, this.node.parent);
    const key = JSON.stringify([all.length, all.indexOf(this.node), ...facts]);
    const changed = key !== this.footKey;
    this.footKey = key;
    return changed;
  }

  copyButton(source) {
    return iconButton("copy", "Copy", (event) => copyFrom(event.currentTarget, source));
  }

  /** `‹ 2/3 ›` where there are several versions of this message. */
  versions() {
    const all = branches(this.thread.conv, this.node.parent);
    if (all.length < 2) return null;
    const at = all.indexOf(this.node);
    const to = (i) => () => this.thread.actions.choose(all[i]);
    return h(
      "span",
      { class: "versions" },
      iconButton("prev", "Previous version", to(at - 1), { disabled: at === 0 }),
      h("span", { "aria-label": `Version ${at + 1} of ${all.length}` }, `${at + 1}/${all.length}`),
      iconButton("next", "Next version", to(at + 1), { disabled: at === all.length - 1 }),
    );
  }
}

class UserView extends MessageView {
  constructor(node, thread) {
    super(node, thread, "user", "You");
    this.bubble = h("div", { class: "bubble", dir: "auto" }, node.content);
    this.el.append(this.bubble, this.foot);
  }

  sync(isLast = this.isLast) {
    this.isLast = isLast;
    if (this.form || !this.footChanged(isLast)) return;
    this.foot.replaceChildren(
      ...[
        this.versions(),
        isLast && this.action("again", "Answer this", "answer"),
        this.copyButton(() => this.node.content),
        iconButton("edit", "Edit", () => this.edit()),
        this.action("trash", "Delete this and what follows", "remove"),
      ].filter(Boolean),
    );
  }

  edit() {
    if (this.form) return this.box.focus();
    this.box = h("textarea", { "aria-label": "Edit message", value: this.node.content, rows: 1, dir: "auto" });
    const send = h("button", { class: "btn primary", type: "submit" }, "Send");
    const cancel = h("button", { class: "btn", type: "button", onclick: () => this.done() }, "Cancel");
    this.form = h(
      "form",
      { class: "edit" },
      this.box,
      h("div", { class: "row" }, h("span", { class: "note" }, "Starts a new branch; the old one stays."), cancel, send),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.box.value;
      if (!text.trim()) return;
      this.done();
      this.thread.actions.edit(this.node, text);
    });
    this.box.addEventListener("input", () => fit(this.box));
    this.box.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey && !matchMedia("(pointer: coarse)").matches) {
        event.preventDefault();
        this.form.requestSubmit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        this.done();
      }
    });
    this.el.classList.add("editing");
    this.bubble.replaceWith(this.form);
    this.foot.replaceChildren();
    this.footKey = null;
    fit(this.box);
    this.box.focus();
    this.box.setSelectionRange(this.box.value.length, this.box.value.length);
  }

  done() {
    this.form.replaceWith(this.bubble);
    this.form = null;
    this.el.classList.remove("editing");
    this.sync();
    $("input").focus();
  }
}

class ToolView extends MessageView {
  constructor(node, thread) {
    super(node, thread, "tool-result", "Tool result");
    const name = upTo(thread.conv, node)
      .flatMap((one) => one.calls ?? [])
      .findLast((call) => call.id === node.callId)?.name;
    this.el.append(
      h(
        "details",
        { class: "call", open: node.content.length < 400 },
        h("summary", {}, icon("tool"), h("span", {}, "Result of "), h("code", {}, name ?? "tool")),
        h("pre", { tabindex: "0" }, node.content || "(empty)"),
      ),
      this.foot,
    );
  }

  sync() {
    if (!this.footChanged()) return;
    this.foot.replaceChildren(
      this.copyButton(() => this.node.content),
      this.action("trash", "Delete this and what follows", "remove"),
    );
  }
}

class AnswerView extends MessageView {
  constructor(node, thread) {
    super(node, thread, "answer", "Answer");
    this.body = h("div", { class: "md" });
    this.text = new MarkdownView(this.body);
    this.who = h("span", {});
    this.waiting = h("div", { class: "waiting" });
    this.calls = h("div", { class: "calls" });
    this.problem = h("div", {});
    this.el.append(
      h("div", { class: "who" }, icon("logo"), this.who),
      this.waiting,
      this.body,
      this.calls,
      this.problem,
      this.foot,
    );
  }

  close() {
    clearInterval(this.timer);
  }

  sync(isLast = this.isLast) {
    const { node } = this;
    const live = node.state === "live";
    this.isLast = isLast;
    this.who.textContent = node.model || "Model";
    this.el.classList.toggle("live", live);
    this.el.setAttribute("aria-busy", live);
    this.syncWaiting(live && !node.content && !node.reasoning && !node.calls?.length);
    if (node.reasoning) this.syncThinking(live && !node.content && !node.calls?.length);
    this.text.update(node.content, live);
    this.syncCalls(live);
    this.syncFoot(live);
  }

  syncWaiting(waits) {
    this.waiting.hidden = !waits;
    this.el.classList.toggle("waits", waits);
    if (!waits) {
      clearInterval(this.timer);
      this.timer = null;
    } else if (!this.timer) {
      const tell = () => {
        const past = Date.now() - this.node.created;
        this.waiting.textContent = past < 1500 ? "" : `Reading the prompt · ${count(Math.round(past / 1000))} s`;
      };
      this.timer = setInterval(tell, 500);
      tell();
    }
  }

  /** The reasoning is open while it is all there is, unless the reader chose otherwise. */
  syncThinking(thinks) {
    const { node } = this;
    if (!this.thinking) {
      const inner = h("div", { class: "md", tabindex: "0" });
      const summary = h("summary", { onclick: () => (this.chosen = true) }, h("span", {}), icon("chevron"));
      this.thoughts = new MarkdownView(inner);
      this.thinking = h("details", { class: "think" }, summary, inner);
      this.body.before(this.thinking);
    }
    this.thinking.classList.toggle("live", thinks);
    if (!this.chosen) this.thinking.open = thinks;
    this.thinking.firstChild.firstChild.textContent = thinks
      ? "Thinking"
      : node.thinkMs
        ? `Thought for ${seconds(node.thinkMs)}`
        : "Reasoning";
    this.thoughts.update(node.reasoning, thinks);
    const inner = this.thinking.lastChild;
    if (thinks) inner.scrollTop = inner.scrollHeight;
  }

  syncCalls(live) {
    const { node } = this;
    const calls = node.calls ?? [];
    calls.forEach((call, i) => {
      let el = this.calls.children[i];
      if (!el?.matches(".call")) {
        el = h(
          "div",
          { class: "call", open: node.content.length < 400 },
          h("div", { class: "call-head" }, icon("tool"), h("span", {}, "Calls "), h("code", {})),
          h("pre", { tabindex: "0" }),
        );
        this.calls.insertBefore(el, this.answers ?? null);
      }
      el.querySelector("code").textContent = call.name;
      el.querySelector("pre").textContent = live ? call.arguments : pretty(call.arguments);
    });
    const asks = !live && this.isLast && calls.length > 0 && node.state === "done";
    if (asks && !this.answers) this.calls.append((this.answers = this.resultForm(calls)));
    if (!asks) {
      this.answers?.remove();
      this.answers = null;
    }
  }

  /** Where the reader gives the results of calls, as the page runs no tools itself. */
  resultForm(calls) {
    const boxes = calls.map((call) =>
      h("textarea", {
        rows: 2,
        class: "mono",
        "aria-label": `Result of ${call.name}`,
        placeholder: `Result of ${call.name}`,
        spellcheck: "false",
      }),
    );
    const form = h(
      "form",
      { class: "results" },
      boxes,
      h(
        "div",
        { class: "row" },
        h("span", { class: "note" }, "This page runs no tools: give the results yourself."),
        h("button", { class: "btn primary", type: "submit" }, "Send results"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.thread.actions.results(
        this.node,
        boxes.map((box) => box.value),
      );
    });
    return form;
  }

  syncFoot(live) {
    const { node } = this;
    if (live) {
      const now = performance.now();
      if (now - (this.told ?? 0) < 250) return;
      this.told = now;
      this.footKey = null;
      this.foot.replaceChildren(this.stats());
      this.problem.replaceChildren();
      return;
    }
    if (!this.footChanged(node.state, node.stats, this.isLast)) return;
    this.told = 0;
    this.problem.replaceChildren(...(node.error ? [this.errorCard()] : []));
    this.foot.replaceChildren(
      ...[
        this.versions(),
        node.content && this.copyButton(() => node.content),
        this.isLast && this.cut() && this.action("play", "Continue", "resume"),
        !node.error && this.action("again", "Answer again", "regenerate"),
        this.action("trash", "Delete this and what follows", "remove"),
        this.stats(),
      ].filter(Boolean),
    );
  }

  /** Whether the text ends before the model ended it. */
  cut() {
    const { content, calls, state, finish } = this.node;
    return content && !calls?.length && (state !== "done" || finish === "length");
  }

  errorCard() {
    const { error } = this.node;
    const { actions } = this.thread;
    const buttons = [
      h("button", { class: "btn", type: "button", onclick: () => actions.regenerate(this.node) }, "Try again"),
    ];
    if (error.status === 401)
      buttons.unshift(
        h("button", { class: "btn primary", type: "button", onclick: () => actions.askKey() }, "Enter the API key"),
      );
    return h(
      "div",
      { class: "problem" },
      icon("alert"),
      h(
        "div",
        {},
        h("strong", {}, error.title),
        h("p", { dir: "auto" }, error.message),
        h("div", { class: "row" }, buttons),
      ),
    );
  }

  stats() {
    const { stats, state, finish } = this.node;
    const parts = [];
    if (state === "stopped") parts.push("stopped");
    if (finish === "length") parts.push("cut at the token limit");
    else if (finish && !["stop", "tool_calls", "function_call"].includes(finish)) parts.push(`ended: ${finish}`);
    if (stats?.tokens) parts.push(`${stats.estimated ? "about " : ""}${plural(stats.tokens, "token")}`);
    if (stats?.rate) parts.push(`${rate(stats.rate)} tokens/s`);
    if (stats?.first) parts.push(`first after ${seconds(stats.first)}`);
    if (stats?.prompt)
      parts.push(
        `prompt ${count(stats.prompt)}${stats.cached ? `, ${count(stats.cached)} cached` : ""}${stats.promptRate ? ` at ${rate(stats.promptRate)}/s` : ""}`,
      );
    return h(
      "span",
      { class: "stats" },
      parts.flatMap((part) => [h("span", {}, part)]),
    );
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // what the model wrote, even if it is broken
  }
}
