// Markdown to elements, for text that a model writes.
//
// Text becomes text nodes and elements made here, never markup, so raw HTML shows as written. Only web and mail
// addresses become links, and pictures become links too: nothing is fetched. Follows CommonMark with tables, task
// lists and strike-through, except that a line break is kept, nested lists may be indented by two columns, and
// `\(…\)`, `\[…\]` and `$$…$$` show their formula as source.

import { copyFrom, h, icon } from "./dom.js";
import { highlight } from "./highlight.js";

const MAX_DEPTH = 12; // of lists, quotes and link texts inside each other
const MAX_OPEN = 24; // emphasis that waits for its end
const MAX_SPAN = 2000; // characters looked ahead for the end of a link or formula

const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-+*]|\d{1,9}[.)])([ \t]+.*)?$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

// ---------------------------------------------------------------- blocks

const blank = (line) => !/\S/.test(line);

/** How many columns a line is indented by, and where its text starts; a tab goes to the next fourth column. */
function margin(line, limit = Infinity) {
  let columns = 0;
  let i = 0;
  for (; columns < limit && (line[i] === " " || line[i] === "\t"); i++)
    columns += line[i] === "\t" ? 4 - (columns % 4) : 1;
  return { columns, start: i };
}

const indent = (line) => margin(line).columns;

function dedent(line, by) {
  const { columns, start } = margin(line, by);
  return " ".repeat(Math.max(0, columns - by)) + line.slice(start);
}

function fenceAt(line) {
  const found = FENCE.exec(line);
  return found && !(found[1][0] === "`" && found[2].includes("`")) ? found : null;
}

function closesFence(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text === mark[0].repeat(text.length);
}

function tableAt(lines, i) {
  if (!lines[i].includes("|") || i + 1 >= lines.length || !DIVIDER.test(lines[i + 1])) return false;
  return cells(lines[i]).length === cells(lines[i + 1]).length;
}

function startsBlock(lines, i) {
  const line = lines[i];
  return fenceAt(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || tableAt(lines, i);
}

/** The cells of a table row; `\|` is a bar inside one. */
function cells(line) {
  const row = line.trim().replace(/^\|/, "");
  const found = [];
  let cell = "";
  for (let i = 0; i < row.length; i++) {
    if (row[i] === "\\" && row[i + 1] === "|") cell += row[++i];
    else if (row[i] === "|") {
      found.push(cell.trim());
      cell = "";
    } else cell += row[i];
  }
  if (!blank(cell)) found.push(cell.trim());
  return found;
}

/** Splits lines into blocks; each names its first line in `at`. */
function parse(lines, depth = 0) {
  const blocks = [];
  let i = 0;
  const add = (at, block) => blocks.push({ at, ...block });
  while (i < lines.length) {
    const at = i;
    const line = lines[i];
    let found;
    if (blank(line)) {
      i++;
    } else if ((found = fenceAt(line))) {
      const [, mark, info] = found;
      const body = [];
      while (++i < lines.length && !closesFence(lines[i], mark)) body.push(dedent(lines[i], indent(line)));
      add(at, {
        type: "code",
        language: info.trim().split(/[\s{,:]/)[0],
        text: body.join("\n"),
        open: i++ >= lines.length,
      });
    } else if ((found = HEADING.exec(line))) {
      const text = (found[2] ?? "").trimEnd();
      const bare = text.replace(/#+$/, "");
      add(at, {
        type: "heading",
        level: found[1].length,
        text: bare === "" || /[ \t]$/.test(bare) ? bare.trim() : text,
      });
      i++;
    } else if (RULE.test(line)) {
      add(at, { type: "rule" });
      i++;
    } else if (QUOTE.test(line) && depth < MAX_DEPTH) {
      const inner = [];
      while (i < lines.length && !blank(lines[i]) && (QUOTE.test(lines[i]) || !startsBlock(lines, i))) {
        inner.push(lines[i++].replace(QUOTE, ""));
      }
      add(at, { type: "quote", blocks: parse(inner, depth + 1) });
    } else if (ITEM.test(line) && depth < MAX_DEPTH) {
      const [list, next] = parseList(lines, i, depth);
      add(at, list);
      i = next;
    } else if (tableAt(lines, i)) {
      const head = cells(line);
      const align = cells(lines[i + 1]).map((cell) =>
        cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left",
      );
      const rows = [];
      for (i += 2; i < lines.length && !blank(lines[i]) && lines[i].includes("|"); i++) rows.push(cells(lines[i]));
      add(at, { type: "table", head, align, rows });
    } else {
      const text = [line.trimStart()];
      while (++i < lines.length && !blank(lines[i]) && !startsBlock(lines, i)) {
        const item = ITEM.exec(lines[i]);
        if (item?.[3] && depth < MAX_DEPTH && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]))) break;
        text.push(lines[i].trimStart());
      }
      add(at, { type: "text", text: text.join("\n").trimEnd() });
    }
  }
  return blocks;
}

/** One list from line `i`; gives the list and the line after it. */
function parseList(lines, i, depth) {
  const ordered = (marker) => /\d/.test(marker);
  const first = ITEM.exec(lines[i]);
  const list = { type: "list", ordered: ordered(first[2]), start: parseInt(first[2], 10), loose: false, items: [] };
  let gap = false; // a blank line came before this one
  while (i < lines.length) {
    const head = ITEM.exec(lines[i]);
    if (!head || RULE.test(lines[i]) || ordered(head[2]) !== list.ordered || indent(lines[i]) < first[1].length) break;
    if (gap) list.loose = true;
    const left = head[1].length;
    const rest = head[3] ?? "";
    const space = indent(rest);
    const content = left + head[2].length + (space >= 1 && space <= 4 ? space : 1);
    const inner = [rest.trimStart()];
    let fence = fenceAt(inner[0])?.[1];
    gap = false;
    for (i++; i < lines.length; i++) {
      const line = lines[i];
      if (blank(line)) {
        inner.push("");
        gap = !fence;
        continue;
      }
      const inside = indent(line) >= left + 2;
      if (!fence && !inside && (gap || ITEM.test(line) || startsBlock(lines, i))) break;
      if (gap && inside && !ITEM.test(line)) list.loose = true;
      gap = false;
      const own = inside ? dedent(line, content) : line;
      if (!fence) fence = fenceAt(own)?.[1];
      else if (closesFence(own, fence)) fence = undefined;
      inner.push(own);
    }
    const task = /^\[([ xX])\][ \t]+/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    list.items.push({ blocks: parse(inner, depth + 1), task: Boolean(task), done: task?.[1].trim() !== "" });
  }
  return [list, i];
}

// ---------------------------------------------------------------- elements

/** The address if it may be followed: absolute, and web or mail. */
export function safeUrl(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

function link(address, ...children) {
  const href = safeUrl(address);
  if (!href) return h("span", { class: "dead", title: "Not a web or mail address" }, ...children);
  return h("a", { href, target: "_blank", rel: "noopener noreferrer", title: href }, ...children);
}

function codeBlock(block) {
  const code = h("code", {}, block.text);
  const copy = h("button", { type: "button", class: "copy", "data-text": "Copy" }, icon("copy"), "Copy");
  copy.addEventListener("click", () => copyFrom(copy, () => code.textContent));
  if (!block.open) highlight(code, block.language);
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, block.language || "text"), copy),
    h("pre", { tabindex: "0", dir: "ltr" }, code),
  );
}

function element(block, live = false) {
  switch (block.type) {
    case "code":
      return codeBlock(block);
    case "heading":
      // The page itself has the first level.
      return h(`h${Math.min(6, block.level + 1)}`, { class: `h${block.level}`, dir: "auto" }, inline(block.text, live));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", { dir: "auto" }, elements(block.blocks, live));
    case "list":
      return h(
        block.ordered ? "ol" : "ul",
        { dir: "auto", class: block.loose && "loose", start: block.ordered && block.start !== 1 && block.start },
        block.items.map((item, i) => listItem(item, block.loose, live && i === block.items.length - 1)),
      );
    case "table": {
      const row = (tag, texts) =>
        h(
          "tr",
          {},
          block.align.map((align, i) => h(tag, { class: align, dir: "auto" }, inline(texts[i] ?? "", live))),
        );
      const body = block.rows.map((texts) => row("td", texts));
      return h(
        "div",
        { class: "table", tabindex: "0" },
        h("table", {}, h("thead", {}, row("th", block.head)), h("tbody", {}, body)),
      );
    }
    default:
      return h("p", { dir: "auto" }, inline(block.text, live));
  }
}

function listItem(item, loose, live) {
  const last = item.blocks.length - 1;
  const parts = item.blocks.map((block, i) =>
    block.type === "text" && !loose ? inline(block.text, live && i === last) : element(block, live && i === last),
  );
  if (!item.task) return h("li", {}, parts);
  return h(
    "li",
    { class: "task" },
    h("input", { type: "checkbox", disabled: true, checked: item.done, "aria-label": "Task" }),
    parts,
  );
}

const elements = (blocks, live) => blocks.map((block, i) => element(block, live && i === blocks.length - 1));

/** The whole text as elements. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...elements(parse(toLines(text))));
  return fragment;
}

// ---------------------------------------------------------------- text inside a block

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'", "#x27": "'" };
const matchAt = (pattern, text, i) => {
  pattern.lastIndex = i;
  return pattern.exec(text);
};
const TICKS = /`+/y;
const BREAK = /<br *\/?>/iy;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/iy;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/iy;
const ENTITY = /&(\w+|#39|#x27);/y;
const RUN = /\*+|_+|~+/y;
const WORD = /[\p{L}\p{N}]/u;

/** Emphasis, code, links and the like. `live` closes what the end of a growing text left open. */
function inline(text, live, depth = 0) {
  const root = document.createDocumentFragment();
  const openers = [];
  let plain = "";
  let i = 0;
  const flush = () => {
    if (plain) root.append(plain);
    plain = "";
  };
  const push = (node, length) => {
    flush();
    root.append(node);
    i += length;
  };

  while (i < text.length) {
    const c = text[i];
    let found;
    if (c === "\n") {
      plain = plain.replace(/[ \t]+$/, "");
      push(h("br"), 1);
    } else if (c === "`") {
      const ticks = matchAt(TICKS, text, i)[0];
      const end = closingTicks(text, i + ticks.length, ticks.length);
      if (end >= 0 || live) {
        const stop = end < 0 ? text.length : end;
        push(h("code", {}, codeText(text.slice(i + ticks.length, stop))), (end < 0 ? stop : stop + ticks.length) - i);
      } else {
        plain += ticks;
        i += ticks.length;
      }
    } else if ((found = formula(text, i))) {
      push(h("code", { class: "formula" }, found.source), found.length);
    } else if (c === "\\" && /[!-/:-@[-`{-~\n]/.test(text[i + 1] ?? "")) {
      if (text[i + 1] === "\n") push(h("br"), 2);
      else {
        plain += text[i + 1];
        i += 2;
      }
    } else if (
      (c === "[" || (c === "!" && text[i + 1] === "[")) &&
      depth < 3 &&
      (found = bracket(text, i + (c === "!")))
    ) {
      push(link(found.address, inline(found.label, false, depth + 1)), found.end - i);
    } else if (c === "<" && (found = matchAt(BREAK, text, i))) {
      push(h("br"), found[0].length);
    } else if (c === "<" && (found = matchAt(ANGLE, text, i))) {
      push(link(found[1], found[1].replace(/^mailto:/i, "")), found[0].length);
    } else if (
      (c === "h" || c === "H") &&
      !WORD.test(text[i - 1] ?? "") &&
      depth === 0 &&
      (found = matchAt(BARE, text, i))
    ) {
      const address = trimAddress(found[0]);
      push(link(address, address), address.length);
    } else if (c === "&" && (found = matchAt(ENTITY, text, i)) && Object.hasOwn(ENTITIES, found[1])) {
      plain += ENTITIES[found[1]];
      i += found[0].length;
    } else if (c === "*" || c === "_" || c === "~") {
      const run = matchAt(RUN, text, i)[0];
      flush();
      emphasis(root, openers, run, text[i - 1] ?? " ", text[i + run.length] ?? " ");
      i += run.length;
    } else {
      plain += c;
      i++;
    }
  }
  flush();
  if (live) while (openers.length) closeLive(root, openers.pop());
  return root;
}

function closingTicks(text, from, length) {
  for (let i = text.indexOf("`", from); i >= 0;) {
    let end = i;
    while (text[end] === "`") end++;
    if (end - i === length) return i;
    i = text.indexOf("`", end);
  }
  return -1;
}

function codeText(text) {
  const line = text.replace(/\n/g, " ");
  return /^ .* $/.test(line) && line.trim() ? line.slice(1, -1) : line;
}

function formula(text, i) {
  const open = text.slice(i, i + 2);
  const close = { "\\(": "\\)", "\\[": "\\]", $$: "$$" }[open];
  if (!close) return null;
  const end = text.slice(i + 2, i + 2 + MAX_SPAN).indexOf(close);
  if (end < 1) return null;
  return { source: text.slice(i + 2, i + 2 + end).trim(), length: end + 4 };
}

/** `[label](address "title")` with its bracket at `i`. */
function bracket(text, i) {
  const limit = Math.min(text.length, i + MAX_SPAN);
  let depth = 0;
  let end = i;
  for (; end < limit; end++) {
    if (text[end] === "\\") end++;
    else if (text[end] === "[") depth++;
    else if (text[end] === "]" && --depth === 0) break;
  }
  if (end >= limit || text[end + 1] !== "(") return null;
  let stop = end + 2;
  for (let open = 1; stop < limit; stop++) {
    if (text[stop] === "\\") stop++;
    else if (text[stop] === "\n") return null;
    else if (text[stop] === "(") open++;
    else if (text[stop] === ")" && --open === 0) break;
  }
  if (stop >= limit) return null;
  const parts = /^\s*(?:<([^<>]*)>|(\S*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*$/.exec(text.slice(end + 2, stop));
  if (!parts) return null;
  return { label: text.slice(i + 1, end), address: parts[1] ?? parts[2], end: stop + 1 };
}

/** Leaves punctuation after a bare address, and a bracket that was not opened in it, out of it. */
function trimAddress(address) {
  for (;;) {
    const last = address.at(-1);
    const unopened = last === ")" && address.split(")").length > address.split("(").length;
    if (!unopened && !/[.,;:!?*_~'\]|]/.test(last)) return address;
    address = address.slice(0, -1);
  }
}

/** Closes what a run of marks can close, then keeps the rest as an opener or as text. */
function emphasis(root, openers, run, before, after) {
  const mark = run[0];
  let left = run.length;
  let opens = !/\s/.test(after);
  let closes = !/\s/.test(before);
  if (mark === "_") {
    // Not inside a word: snake_case stays as it is.
    [opens, closes] = [opens && !WORD.test(before), closes && !WORD.test(after)];
  }
  if (mark === "~" && left !== 2) opens = closes = false;
  while (closes && left) {
    const k = openers.findLastIndex(
      (o) =>
        o.mark === mark &&
        (!(o.closes || opens) || (o.total + run.length) % 3 !== 0 || (o.total % 3 === 0 && run.length % 3 === 0)),
    );
    if (k < 0) break;
    const opener = openers[k];
    openers.length = k + 1;
    const used = opener.left >= 2 && left >= 2 ? 2 : 1;
    wrap(root, opener, used);
    left -= used;
    if (opener.left === 0) openers.pop();
  }
  if (!left) return;
  const node = document.createTextNode(mark.repeat(left));
  root.append(node);
  if (opens) openers.push({ mark, node, left, total: run.length, closes });
  if (openers.length > MAX_OPEN) openers.shift();
}

function wrap(root, opener, used) {
  const tag = opener.mark === "~" ? "s" : used === 2 ? "strong" : "em";
  const el = h(tag);
  while (opener.node.nextSibling) el.append(opener.node.nextSibling);
  opener.left -= used;
  opener.node.data = opener.mark.repeat(opener.left);
  root.append(el);
  if (opener.left === 0) opener.node.remove();
}

/** Shows bold and struck text as such while its end is still to come. */
function closeLive(root, opener) {
  if (opener.left >= 2 && opener.node.nextSibling) wrap(root, opener, 2);
}

// ---------------------------------------------------------------- growing text

const toLines = (text) => text.split(/\r\n|\r|\n/);

/**
 * Shows a text that grows. Only what new text can still change is parsed again, which is the last two blocks (a list
 * may go on after what looked like a new block), and elements whose source did not change stay in place.
 */
export class MarkdownView {
  constructor(el) {
    this.el = el;
    this.text = "";
    this.live = false;
    this.blocks = []; // {source, offset, live, block, node} in order
  }

  /** Shows `text`; `live` while more may follow. */
  update(text, live) {
    if (text === this.text && live === this.live) return;
    const grew = live && text.length >= this.text.length && text.startsWith(this.text);
    const kept = grew ? Math.max(0, this.blocks.length - 2) : 0;
    const from = kept ? this.blocks[kept].offset : 0;
    const lines = toLines(text.slice(from));
    const blocks = parse(lines);
    const offsets = lineOffsets(text, from, lines.length);
    const old = this.blocks.splice(kept);
    blocks.forEach((block, i) => {
      const end = blocks[i + 1]?.at ?? lines.length;
      const raw = lines.slice(block.at, end).join("\n");
      const source = block.open ? raw : raw.trimEnd();
      const open = live && i === blocks.length - 1;
      const next = { source, offset: offsets[block.at], live: open, block };
      next.node = this.place(old[i], next);
      this.blocks.push(next);
    });
    for (const gone of old.slice(blocks.length)) gone.node.remove();
    this.text = text;
    this.live = live;
  }

  /** The element of a block: the old one if it still fits, else a new one in its place. */
  place(old, next) {
    if (old && old.source === next.source && old.live === next.live) return old.node;
    const { block } = next;
    if (
      old?.block.type === "code" &&
      old.block.open &&
      block.type === "code" &&
      block.open &&
      old.block.language === block.language
    ) {
      const node = old.node.querySelector("code").firstChild;
      if (node && block.text.startsWith(old.block.text)) {
        node.appendData(block.text.slice(old.block.text.length));
        return old.node;
      }
    }
    const node = element(block, next.live);
    if (old) old.node.replaceWith(node);
    else this.el.append(node);
    return node;
  }
}

/** Where each of `count` lines starts, from character `from` on. */
function lineOffsets(text, from, count) {
  const offsets = [from];
  const end = /\r\n|\r|\n/g;
  end.lastIndex = from;
  while (offsets.length < count && end.exec(text)) offsets.push(end.lastIndex);
  return offsets;
}
