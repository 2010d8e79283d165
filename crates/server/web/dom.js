// Small helpers for the page: elements, icons, numbers, clipboard and files.
// Nothing here takes markup as text, so nothing that a model writes can become an element by itself.

export const $ = (id) => document.getElementById(id);

/** Makes an element. `on…` are listeners, `true` is an empty attribute, and absent values are left out. */
export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  // Before the attributes: with dir="auto" there, a browser looks through all text again for each child.
  el.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key === "value") el.value = value;
    else el.setAttribute(key, value === true ? "" : value);
  }
  return el;
}

/** An icon from the sheet at the head of the page. */
export function icon(name) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const use = document.createElementNS(ns, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows only an icon; its label is for screen readers and the tooltip. */
export function iconButton(name, label, onclick, extra = {}) {
  return h(
    "button",
    { class: "tool", type: "button", "aria-label": label, title: label, onclick, ...extra },
    icon(name),
  );
}

const session = new Map();

/** What the page remembers besides conversations; for this visit only where the browser keeps nothing. */
export const prefs = {
  get(key) {
    try {
      return session.get(key) ?? localStorage.getItem(`wootz.${key}`);
    } catch {
      return session.get(key) ?? null;
    }
  },
  set(key, value) {
    session.delete(key);
    try {
      if (value) localStorage.setItem(`wootz.${key}`, value);
      else localStorage.removeItem(`wootz.${key}`);
    } catch {
      session.set(key, value);
    }
  },
};

const grouped = new Intl.NumberFormat();

export const count = (n) => grouped.format(n);
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const seconds = (ms) =>
  ms < 9950 ? `${(ms / 1000).toFixed(ms < 995 ? 2 : 1)} s` : `${count(Math.round(ms / 1000))} s`;
export const rate = (n) => (n < 99.95 ? n.toFixed(1) : count(Math.round(n)));

/** An id for a conversation or message; `randomUUID` is missing on plain http beyond this machine. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** Copies text, also where the page is served without TLS and has no clipboard interface. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Not allowed here: the old way below may still be.
    }
  }
  const box = h("textarea", { class: "sr", value: text, "aria-hidden": "true" });
  const focused = document.activeElement;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  focused?.focus();
  return done;
}

/** Copies what `source` gives and shows on the button whether that worked. */
export async function copyFrom(button, source) {
  const done = await copyText(source());
  button.replaceChildren(
    icon(done ? "check" : "alert"),
    ...(button.dataset.text ? [done ? "Copied" : "Not allowed"] : []),
  );
  say(done ? "Copied" : "The browser does not allow copying");
  clearTimeout(button.restore);
  button.restore = setTimeout(() => {
    button.replaceChildren(icon("copy"), ...(button.dataset.text ? [button.dataset.text] : []));
  }, 1600);
}

/** Offers text as a file to save. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 30_000);
}

/** Tells screen readers something without showing it. */
export function say(text) {
  $("live").textContent = "";
  requestAnimationFrame(() => ($("live").textContent = text));
}

/** Shows a passing note, with an action if one is given. */
export function toast(text, action, run) {
  const close = () => note.remove();
  const note = h("div", { class: "toast" }, h("span", {}, text));
  if (action) note.append(h("button", { type: "button", onclick: () => (close(), run()) }, action));
  note.append(iconButton("close", "Dismiss", close));
  $("toasts").append(note);
  while ($("toasts").childElementCount > 3) $("toasts").firstElementChild.remove();
  setTimeout(close, action ? 10_000 : 6_000);
}

/** Makes a text box as tall as its text, up to what the style sheet allows. */
export function fit(box) {
  if (CSS.supports("field-sizing", "content")) return;
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
}

/** Opens the shared menu at an element: `items` are `[icon, label, action, danger]`. */
export function openMenu(anchor, items) {
  const menu = $("menu");
  const pick = (action) => () => {
    menu.hidePopover();
    action();
  };
  menu.replaceChildren(
    ...items.map(([name, label, action, danger]) =>
      h(
        "button",
        { type: "button", role: "menuitem", class: danger && "danger", onclick: pick(action) },
        icon(name),
        label,
      ),
    ),
  );
  const entries = [...menu.children];
  menu.onkeydown = (event) => {
    const at = entries.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Tab") menu.hidePopover();
    if (to === undefined) return;
    event.preventDefault();
    entries.at(to % entries.length).focus();
  };
  menu.ontoggle = (event) => {
    const open = event.newState === "open";
    if (anchor.hasAttribute("aria-haspopup")) anchor.setAttribute("aria-expanded", open);
    if (open) entries[0].focus();
  };
  menu.showPopover();
  const from = anchor.getBoundingClientRect();
  const left = Math.min(from.left, innerWidth - menu.offsetWidth - 8);
  const below = from.bottom + 6 + menu.offsetHeight < innerHeight;
  menu.style.left = `${Math.max(8, left)}px`;
  menu.style.top = `${below ? from.bottom + 6 : Math.max(8, from.top - menu.offsetHeight - 6)}px`;
}
