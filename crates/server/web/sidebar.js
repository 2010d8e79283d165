// The list of conversations: search, rename, delete, export and import.

import { $, count, download, h, iconButton, openMenu, plural, toast } from "./dom.js";
import { find, fromJson, titleOf, toJson, toMarkdown } from "./store.js";

const DAY = 86_400_000;

export class Sidebar {
  /** `app` opens, renames and deletes conversations. */
  constructor(app) {
    this.app = app;
    this.store = app.store;
    $("search").addEventListener("input", () => this.render());
    $("search").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && $("search").value) {
        event.stopPropagation();
        $("search").value = "";
        this.render();
      } else if (event.key === "Enter" || event.key === "ArrowDown") {
        event.preventDefault();
        const first = $("list").querySelector(".item-open");
        if (event.key === "Enter") first?.click();
        else first?.focus();
      }
    });
    $("list").addEventListener("keydown", (event) => this.walk(event));
    $("export").addEventListener("click", () => this.exportAll());
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.importFiles());
    $("title").addEventListener("click", () => this.menu(app.conv, $("title")));
    $("wipe").addEventListener("click", () => this.wipe());
  }

  render() {
    if (this.renaming) return; // the name's box ends with a new list
    const words = $("search").value.trim();
    const focused = document.activeElement?.closest?.(".item")?.dataset.id;
    const groups = new Map();
    let found = 0;
    for (const conv of this.store.list()) {
      const hit = words ? find(conv, words) : "";
      if (hit === null) continue;
      found++;
      const name = words ? "Found" : age(conv.updated);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.item(conv, words, hit));
    }
    $("list").replaceChildren(
      ...[...groups].map(([name, items]) =>
        h("section", { "aria-label": name }, h("h2", {}, name), h("ul", {}, items)),
      ),
    );
    if (!found)
      $("list").append(
        h("p", { class: "note" }, words ? `Nothing found for “${words}”.` : "Conversations appear here."),
      );
    if (focused) $("list").querySelector(`[data-id="${focused}"] .item-open`)?.focus();
    const { conv } = this.app;
    $("title-text").textContent = $("title-shown").textContent = titleOf(conv);
    $("title").disabled = !this.store.conversations.has(conv.id);
    document.title = conv.nodes.size ? `${titleOf(conv)} · wootz` : "wootz";
    $("export").disabled = this.store.conversations.size === 0;
    $("wipe").disabled = this.store.conversations.size === 0;
  }

  item(conv, words, hit) {
    const current = conv.id === this.app.conv.id;
    const open = h(
      "button",
      {
        class: "item-open",
        type: "button",
        "aria-current": current && "true",
        title: titleOf(conv),
        onclick: () => this.app.open(conv.id),
      },
      h("span", { class: "item-title" }, marked(titleOf(conv), words)),
      hit && h("span", { class: "item-hit" }, marked(hit, words)),
    );
    if (this.app.running(conv.id)) open.append(h("span", { class: "pulse", role: "img", "aria-label": "Answering" }));
    const more = iconButton("more", `More for ${titleOf(conv)}`, () => this.menu(conv, more), {
      "aria-haspopup": "menu",
    });
    return h("li", { class: current ? "item current" : "item", "data-id": conv.id }, open, more);
  }

  walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches(".item-open")) return;
    event.preventDefault();
    const all = [...$("list").querySelectorAll(".item-open")];
    (all[all.indexOf(event.target) + step] ?? (step < 0 ? $("search") : null))?.focus();
  }

  menu(conv, anchor) {
    const name = fileName(titleOf(conv));
    openMenu(anchor, [
      ["edit", "Rename", () => this.rename(conv)],
      ["export", "Export as Markdown", () => download(`${name}.md`, "text/markdown", toMarkdown(conv))],
      ["export", "Export as JSON", () => download(`${name}.json`, "application/json", toJson([conv]))],
      ["trash", "Delete", () => this.app.remove(conv), true],
    ]);
  }

  rename(conv) {
    const inList = $("list").querySelector(`[data-id="${conv.id}"] .item-open`);
    // The list may be hidden or not hold it: then the title in the header takes the name.
    const place = inList?.checkVisibility() ? inList : $("title");
    const box = h("input", {
      class: "rename",
      type: "text",
      value: titleOf(conv),
      "aria-label": "Name of the conversation",
      maxlength: 200,
    });
    const end = (keep) => {
      if (!this.renaming) return;
      this.renaming = false;
      if (keep) {
        conv.title = box.value.trim();
        this.store.save(conv);
      }
      box.replaceWith(place);
      this.render();
      (place.isConnected ? place : $("list").querySelector(`[data-id="${conv.id}"] .item-open`))?.focus();
    };
    box.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      event.stopPropagation();
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault(); // else the key also presses what gets the focus back
      end(event.key === "Enter");
    });
    box.addEventListener("blur", () => end(true));
    this.renaming = true;
    place.replaceWith(box);
    box.focus();
    box.select();
  }

  exportAll() {
    const all = this.store.list();
    download(`wootz-conversations-${new Date().toISOString().slice(0, 10)}.json`, "application/json", toJson(all));
    toast(`Exported ${plural(all.length, "conversation")}`);
  }

  async importFiles() {
    let added = 0;
    for (const file of $("import-file").files) {
      try {
        for (const conv of fromJson(await file.text())) {
          if (this.store.conversations.has(conv.id)) {
            const there = this.store.conversations.get(conv.id);
            if (there.updated >= conv.updated && there.nodes.size >= conv.nodes.size) continue;
            if (this.app.running(conv.id)) continue;
          }
          await this.store.save(conv);
          added++;
        }
      } catch (error) {
        toast(`${file.name} cannot be imported: ${error.message}.`);
      }
    }
    $("import-file").value = "";
    this.app.refresh();
    toast(added ? `Imported ${plural(added, "conversation")}` : "Nothing new to import");
  }

  wipe() {
    const all = this.store.list();
    if (
      !confirm(
        `Delete ${all.length === 1 ? "the conversation" : `all ${count(all.length)} conversations`} from this browser? This cannot be undone.`,
      )
    )
      return;
    this.app.removeAll(all);
  }
}

function age(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  if (time >= today - 7 * DAY) return "Last week";
  if (time >= today - 30 * DAY) return "Last month";
  return "Older";
}

/** The text with what was searched for marked. */
function marked(text, words) {
  const at = words ? text.toLowerCase().indexOf(words.toLowerCase()) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), h("mark", {}, text.slice(at, at + words.length)), text.slice(at + words.length)];
}

const fileName = (title) =>
  title
    .replace(/[^\p{L}\p{N} ._-]+/gu, "")
    .trim()
    .replace(/\s+/g, "-")
    .slice(0, 60) || "conversation";
