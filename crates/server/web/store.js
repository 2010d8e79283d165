// Conversations and where they are kept.
//
// A conversation is a tree of messages: editing or asking again adds a branch and loses nothing. Each message (and the
// conversation itself, for its start) remembers in `next` which of the branches after it is shown.

import { newId } from "./dom.js";

const ROLES = ["user", "assistant", "tool"];
const FORMAT = "wootz-conversations";

export function newConversation(defaults = {}) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    system: "",
    params: {},
    model: "",
    next: null,
    nodes: new Map(),
    ...defaults,
  };
}

// ---------------------------------------------------------------- the tree

/** The messages shown, from the first to the last. */
export function path(conv) {
  const shown = [];
  for (let node = conv.nodes.get(conv.next); node; node = conv.nodes.get(node.next)) shown.push(node);
  return shown;
}

/** All messages that follow `parent` (or begin the conversation), oldest first. */
export function branches(conv, parent) {
  return [...conv.nodes.values()].filter((node) => node.parent === parent);
}

const holder = (conv, parent) => conv.nodes.get(parent) ?? conv;

/** Adds a message after `parent` (null for the start) and shows it. */
export function addNode(conv, parent, fields) {
  const node = {
    id: newId(),
    parent,
    next: null,
    role: "user",
    content: "",
    created: Date.now(),
    state: "done",
    ...fields,
  };
  conv.nodes.set(node.id, node);
  holder(conv, parent).next = node.id;
  conv.updated = node.created;
  return node;
}

/** Shows the branch that `node` begins. */
export function choose(conv, node) {
  holder(conv, node.parent).next = node.id;
}

/** Takes a message and all that follows it away; another branch is shown if there is one. */
export function removeNode(conv, node) {
  const gone = [node];
  for (let i = 0; i < gone.length; i++) gone.push(...branches(conv, gone[i].id));
  for (const one of gone) conv.nodes.delete(one.id);
  const from = holder(conv, node.parent);
  if (from.next === node.id) from.next = branches(conv, node.parent).at(-1)?.id ?? null;
}

/** The title: given by the user, or the beginning of the first message. */
export function titleOf(conv) {
  if (conv.title) return conv.title;
  const first =
    path(conv)
      .find((node) => node.role === "user")
      ?.content.trim() ?? "";
  const line = first.split("\n", 1)[0].replace(/\s+/g, " ");
  return line.length > 70 ? `${line.slice(0, 68).trimEnd()}…` : line || "New chat";
}

/** Where `words` are found: null if nowhere, else a piece of text around the first place (empty for the title). */
export function find(conv, words) {
  const needle = words.toLowerCase();
  if (titleOf(conv).toLowerCase().includes(needle)) return "";
  for (const node of conv.nodes.values()) {
    const at = node.content.toLowerCase().indexOf(needle);
    if (at >= 0) return node.content.slice(Math.max(0, at - 24), at + needle.length + 60).replace(/\s+/g, " ");
  }
  return null;
}

/** The messages from the first to `node`. */
export function upTo(conv, node) {
  const nodes = [];
  for (let up = node; up; up = conv.nodes.get(up.parent)) nodes.unshift(up);
  return nodes;
}

/** The messages to send so that the model answers after the last of `nodes`. */
export function toMessages(conv, nodes) {
  const messages = conv.system.trim() ? [{ role: "system", content: conv.system }] : [];
  const lastUser = nodes.findLastIndex((node) => node.role === "user");
  nodes.forEach((node, i) => {
    if (node.role === "tool") {
      messages.push({ role: "tool", tool_call_id: node.callId, content: node.content });
    } else if (node.role === "user") {
      messages.push({ role: "user", content: node.content });
    } else if (node.content || node.calls?.length) {
      const message = { role: "assistant", content: node.content };
      if (node.calls?.length) {
        message.tool_calls = node.calls.map((call) => ({
          id: call.id,
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        }));
        // Models that reason between calls need their reasoning back until the turn is over.
        if (node.reasoning && i > lastUser) message.reasoning_content = node.reasoning;
      }
      messages.push(message);
    }
  });
  return messages;
}

// ---------------------------------------------------------------- files

export function toJson(conversations) {
  const plain = conversations.map((conv) => ({ ...conv, nodes: [...conv.nodes.values()] }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations: plain }, null, 2);
}

export function toMarkdown(conv) {
  const names = { user: "You", assistant: "Model", tool: "Tool" };
  const parts = [`# ${titleOf(conv)}`];
  if (conv.system.trim()) parts.push(`## System\n\n${conv.system.trim()}`);
  for (const node of path(conv)) {
    const name = node.role === "assistant" && node.model ? `${names.assistant} (${node.model})` : names[node.role];
    const body = [node.content.trim()];
    if (node.reasoning) body.unshift(quote(`Reasoning:\n\n${node.reasoning.trim()}`));
    for (const call of node.calls ?? []) body.push(`Call of \`${call.name}\`:\n\n${fence(call.arguments, "json")}`);
    parts.push(`## ${name}\n\n${body.filter(Boolean).join("\n\n")}`);
  }
  return `${parts.join("\n\n")}\n`;
}

const quote = (text) =>
  text
    .split("\n")
    .map((line) => `> ${line}`.trimEnd())
    .join("\n");

function fence(text, language) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (ticks) => ticks[0].length));
  const mark = "`".repeat(longest + 1);
  return `${mark}${language}\n${text}\n${mark}`;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const text = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) && value > 0 && value < 8.64e15 ? value : Date.now());

/** The conversations in a file: one that this page wrote, or a list of chat messages. Throws if it is neither. */
export function fromJson(source) {
  let data;
  try {
    data = JSON.parse(source);
  } catch {
    throw new Error("it is not JSON");
  }
  if (isObject(data) && data.format === FORMAT) {
    if (data.version !== 1)
      throw new Error(`it has version ${JSON.stringify(data.version)}, and this page reads version 1`);
    if (!Array.isArray(data.conversations)) throw new Error("it has no list of conversations");
    return data.conversations.filter(isObject).map(readConversation);
  }
  const messages = Array.isArray(data) ? data : data?.messages;
  if (!Array.isArray(messages) || !messages.every((message) => isObject(message) && typeof message.role === "string")) {
    throw new Error("it holds neither conversations of this page nor a list of chat messages");
  }
  return [readMessages(messages)];
}

function readConversation(data) {
  const conv = newConversation({
    title: text(data.title),
    created: time(data.created),
    updated: time(data.updated),
    system: text(data.system),
    model: text(data.model),
    params: readParams(data.params),
  });
  if (/^[0-9a-f]{24}$/.test(data.id)) conv.id = data.id;
  const entries = Array.isArray(data.nodes)
    ? data.nodes.filter((node) => isObject(node) && typeof node.id === "string")
    : [];
  const ids = new Set(entries.map((node) => node.id));
  const known = (id) => (ids.has(id) ? id : null);
  conv.next = known(data.next);
  for (const entry of entries) {
    if (!ROLES.includes(entry.role)) throw new Error(`a message has the role ${JSON.stringify(entry.role)}`);
    const node = {
      id: entry.id,
      parent: known(entry.parent),
      next: known(entry.next),
      role: entry.role,
      content: text(entry.content),
      created: time(entry.created),
      state: "done",
    };
    if (["stopped", "error"].includes(entry.state)) node.state = entry.state;
    for (const key of ["reasoning", "model", "finish", "callId"])
      if (typeof entry[key] === "string") node[key] = entry[key];
    if (Number.isFinite(entry.thinkMs)) node.thinkMs = entry.thinkMs;
    if (Array.isArray(entry.calls)) node.calls = entry.calls.filter(isObject).map(readCall);
    if (isObject(entry.stats))
      node.stats = Object.fromEntries(Object.entries(entry.stats).filter(([, value]) => Number.isFinite(value)));
    if (isObject(entry.error)) node.error = { title: text(entry.error.title), message: text(entry.error.message) };
    conv.nodes.set(node.id, node);
  }
  checkTree(conv);
  return conv;
}

function readParams(data) {
  const params = {};
  for (const [key, value] of Object.entries(isObject(data) ? data : {})) {
    if (Number.isFinite(value)) params[key] = value;
  }
  if (Array.isArray(data?.stop)) params.stop = data.stop.filter((stop) => typeof stop === "string");
  if (isObject(data?.extra)) params.extra = data.extra;
  return params;
}

const readCall = (call) => ({ id: text(call.id), name: text(call.name), arguments: text(call.arguments) });

/** Refuses links that lead in a circle or to a message of another branch, which would hang the page. */
function checkTree(conv) {
  for (const node of conv.nodes.values()) {
    const seen = new Set();
    for (let up = node; up; up = conv.nodes.get(up.parent)) {
      if (seen.has(up.id)) throw new Error("its messages lead in a circle");
      seen.add(up.id);
    }
  }
  for (const from of [conv, ...conv.nodes.values()]) {
    if (from.next && conv.nodes.get(from.next).parent !== (from === conv ? null : from.id)) {
      throw new Error("its messages are not in order");
    }
  }
}

function readMessages(messages) {
  const conv = newConversation();
  let last = null;
  for (const message of messages) {
    const content = Array.isArray(message.content)
      ? message.content.map((part) => text(part?.text)).join("")
      : text(message.content);
    if (message.role === "system" || message.role === "developer") {
      conv.system = content;
      continue;
    }
    if (!ROLES.includes(message.role)) throw new Error(`a message has the role ${JSON.stringify(message.role)}`);
    const fields = { role: message.role, content };
    if (text(message.reasoning_content)) fields.reasoning = message.reasoning_content;
    if (Array.isArray(message.tool_calls))
      fields.calls = message.tool_calls.map((call) => readCall({ id: call?.id, ...call?.function }));
    if (message.role === "tool") fields.callId = text(message.tool_call_id);
    last = addNode(conv, last, fields).id;
  }
  return conv;
}

// ---------------------------------------------------------------- the browser's database

/** All conversations: in memory to read, written through to the browser's database. */
export class Store {
  constructor() {
    this.conversations = new Map();
    this.persistent = false;
    this.onchange = () => {}; // another tab changed a conversation (its id)
    this.onfail = () => {}; // the browser refused to keep something
    this.busy = () => false; // whether a conversation is being changed here
    this.pending = new Map();
  }

  async open() {
    try {
      this.db = await openDatabase();
      for (const conv of await result(this.objects("readonly").getAll())) {
        settle(conv);
        this.conversations.set(conv.id, conv);
      }
      this.persistent = true;
    } catch (error) {
      this.onfail(error);
    }
    if ("BroadcastChannel" in window) {
      this.channel = new BroadcastChannel("wootz");
      this.channel.onmessage = ({ data }) => this.reload(data);
    }
  }

  objects(mode) {
    return this.db.transaction("conversations", mode).objectStore("conversations");
  }

  list() {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  /** Keeps a conversation. */
  save(conv) {
    this.conversations.set(conv.id, conv);
    clearTimeout(this.pending.get(conv.id));
    return this.write(conv);
  }

  /** Keeps a conversation that changes many times a second: every second. */
  later(conv) {
    if (!this.pending.has(conv.id))
      this.pending.set(
        conv.id,
        setTimeout(() => this.write(conv), 1000),
      );
  }

  async write(conv) {
    this.pending.delete(conv.id);
    if (!this.persistent || this.conversations.get(conv.id) !== conv) return; // deleted, or read anew, since
    try {
      await result(this.objects("readwrite").put(conv));
      this.channel?.postMessage(conv.id);
    } catch (error) {
      this.onfail(error);
    }
  }

  async remove(id) {
    this.conversations.delete(id);
    if (!this.persistent) return;
    try {
      await result(this.objects("readwrite").delete(id));
      this.channel?.postMessage(id);
    } catch (error) {
      this.onfail(error);
    }
  }

  async reload(id) {
    if (!this.persistent || this.busy(id)) return;
    const conv = await result(this.objects("readonly").get(id)).catch(() => null);
    if (conv) this.conversations.set(id, conv);
    else this.conversations.delete(id);
    this.onchange(id);
  }
}

/** An answer that was streaming when the page closed has ended. */
function settle(conv) {
  for (const node of conv.nodes.values()) {
    if (node.state === "live") node.state = "stopped";
  }
}

function openDatabase() {
  const request = indexedDB.open("wootz", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  return result(request);
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
