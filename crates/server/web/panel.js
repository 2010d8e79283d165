// The settings: what a conversation sends with its messages, the key of the server, and the looks.

import { $, fit, h, iconButton, prefs, toast } from "./dom.js";

// `rest` is where the slider stands while the server chooses.
const SAMPLERS = [
  {
    key: "temperature",
    label: "Temperature",
    min: 0,
    top: 2,
    step: 0.05,
    rest: 0.8,
    note: "Higher is more varied; 0 always takes the likeliest token.",
  },
  {
    key: "top_p",
    label: "Top p",
    min: 0,
    max: 1,
    top: 1,
    step: 0.01,
    rest: 0.95,
    note: "Keeps the likeliest tokens that make up this share.",
  },
  {
    key: "top_k",
    label: "Top k",
    min: 0,
    top: 200,
    step: 1,
    rest: 40,
    whole: true,
    note: "Keeps this many of the likeliest tokens; 0 keeps all.",
  },
  {
    key: "min_p",
    label: "Min p",
    min: 0,
    max: 1,
    top: 1,
    step: 0.01,
    rest: 0.05,
    note: "Drops what is less likely than this share of the likeliest.",
  },
  {
    key: "repeat_penalty",
    label: "Repeat penalty",
    min: 0.01,
    low: 0.8,
    top: 1.6,
    step: 0.01,
    rest: 1,
    note: "Above 1 makes repetition less likely.",
  },
  { key: "max_tokens", label: "Most tokens", min: 1, step: 1, whole: true, note: "The answer ends after this many." },
  {
    key: "seed",
    label: "Seed",
    min: 0,
    step: 1,
    whole: true,
    note: "The same seed and settings give the same answer.",
  },
];

const RESERVED = ["messages", "stream", "stream_options", "model"];

export class Panel {
  /** `app` gives the conversation shown and is told of changes. */
  constructor(app) {
    this.app = app;
    this.rows = SAMPLERS.map((spec) => this.row(spec));
    $("params").append(...this.rows.map((row) => row.el));
    $("system").addEventListener("input", () => {
      fit($("system"));
      app.conv.system = $("system").value;
      this.changed();
    });
    $("stop").addEventListener("input", () => this.set("stop", readStops($("stop").value)));
    $("extra").addEventListener("input", () => this.readExtra());
    $("params-reset").addEventListener("click", () => {
      const before = app.conv.params;
      app.conv.params = {};
      this.show();
      this.changed();
      toast("The server chooses again", "Undo", () => {
        app.conv.params = before;
        this.show();
        this.changed();
      });
    });
    $("params-keep").addEventListener("click", () => {
      prefs.set("defaults", JSON.stringify({ system: app.conv.system, params: app.conv.params }));
      toast("New chats begin with this system prompt and these settings");
    });
    $("key").value = prefs.get("key") ?? "";
    $("key").addEventListener("change", () => {
      prefs.set("key", $("key").value.trim());
      app.loadModels();
    });
    this.initTheme();
  }

  row(spec) {
    const number = h("input", {
      type: "number",
      inputmode: spec.whole ? "numeric" : "decimal",
      id: `p-${spec.key}`,
      min: spec.min,
      max: spec.max,
      step: spec.whole ? 1 : "any",
      placeholder: "server",
      "aria-describedby": `p-${spec.key}-note`,
    });
    const slider =
      spec.top &&
      h("input", {
        type: "range",
        min: spec.low ?? spec.min,
        max: spec.top,
        step: spec.step,
        "aria-label": spec.label,
        tabindex: "-1",
      });
    const reset = iconButton("close", `Leave ${spec.label.toLowerCase()} to the server`, () => {
      this.set(spec.key, undefined);
      this.show();
      number.focus();
    });
    const note = h("p", { class: "note", id: `p-${spec.key}-note` }, spec.note);
    const el = h("div", { class: "param" }, h("label", { for: number.id }, spec.label), reset, number, slider, note);
    const show = (value) => {
      el.classList.toggle("set", value !== undefined);
      reset.hidden = value === undefined;
      if (slider) slider.value = value ?? spec.rest;
    };
    const check = () => {
      const wrong = wrongNumber(spec, number);
      note.textContent = wrong ?? spec.note;
      note.classList.toggle("wrong", Boolean(wrong));
      number.setAttribute("aria-invalid", Boolean(wrong));
      return !wrong;
    };
    number.addEventListener("input", () => {
      const value = check() && number.value !== "" ? Number(number.value) : undefined;
      this.set(spec.key, value);
      show(value);
    });
    slider?.addEventListener("input", () => {
      number.value = slider.value;
      check();
      this.set(spec.key, Number(slider.value));
      show(Number(slider.value));
    });
    return {
      el,
      fill: (value) => {
        number.value = value ?? "";
        check();
        show(value);
      },
    };
  }

  set(key, value) {
    const { conv } = this.app;
    if (value === undefined) delete conv.params[key];
    else conv.params[key] = value;
    this.changed();
  }

  readExtra() {
    const text = $("extra").value.trim();
    let extra;
    let wrong = "";
    try {
      extra = text ? JSON.parse(text) : undefined;
      const reserved = RESERVED.find((key) => extra && Object.hasOwn(extra, key));
      if (text && (typeof extra !== "object" || extra === null || Array.isArray(extra)))
        wrong = "This must be a JSON object.";
      else if (reserved) wrong = `The page sets ${reserved} itself.`;
    } catch (error) {
      wrong = `Not valid JSON: ${error.message}`;
    }
    $("extra-error").textContent = wrong;
    $("extra-error").hidden = !wrong;
    $("extra").setAttribute("aria-invalid", Boolean(wrong));
    this.set("extra", wrong ? undefined : extra);
  }

  changed() {
    this.app.settingsChanged();
    this.showCount();
  }

  showCount() {
    const { conv } = this.app;
    const changed = Object.keys(conv.params).length + (conv.system.trim() ? 1 : 0);
    $("panel-count").textContent = changed;
    $("panel-count").hidden = changed === 0;
    $("panel-open").setAttribute("aria-label", changed ? `Settings, ${changed} changed` : "Settings");
  }

  /** Fills the form from the conversation shown. */
  show() {
    const { system, params } = this.app.conv;
    $("system").value = system;
    fit($("system"));
    SAMPLERS.forEach((spec, i) =>
      this.rows[i].fill(typeof params[spec.key] === "number" ? params[spec.key] : undefined),
    );
    $("stop").value = (params.stop ?? []).map(escapeStop).join("\n");
    $("extra").value = params.extra ? JSON.stringify(params.extra, null, 1) : "";
    $("extra-error").hidden = true;
    $("extra").setAttribute("aria-invalid", "false");
    this.showCount();
  }

  initTheme() {
    const choice = prefs.get("theme") ?? "auto";
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const apply = (theme) => {
      if (theme === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      for (const radio of document.getElementsByName("theme")) radio.checked = radio.value === theme;
      const shown = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
      const other = shown === "dark" ? "light" : "dark";
      $("theme").setAttribute("aria-label", `Use the ${other} theme`);
      $("theme").title = `Use the ${other} theme`;
      $("theme").onclick = () => keep(other);
      document.querySelector("meta[name=theme-color]").content = getComputedStyle(document.body).backgroundColor;
    };
    const keep = (theme) => {
      prefs.set("theme", theme);
      apply(theme);
    };
    $("themes").addEventListener("change", (event) => keep(event.target.value));
    dark.addEventListener("change", () => apply(prefs.get("theme") ?? "auto"));
    apply(choice);
  }
}

/** Why a number cannot be sent, or undefined. */
function wrongNumber(spec, input) {
  if (input.validity.badInput) return "This is not a number.";
  if (input.value === "") return undefined;
  const value = Number(input.value);
  if (spec.whole && !Number.isSafeInteger(value)) return "This must be a whole number.";
  if (value < spec.min || value > spec.max) {
    return spec.max === undefined
      ? `This must be ${spec.min} or more.`
      : `This must be from ${spec.min} to ${spec.max}.`;
  }
  return undefined;
}

const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };
const escapeStop = (text) => text.replace(/[\\\n\t]/g, (c) => (c === "\n" ? "\\n" : c === "\t" ? "\\t" : "\\\\"));

function readStops(text) {
  const stops = text.split("\n").filter(Boolean);
  if (!stops.length) return undefined;
  return stops.map((line) => line.replace(/\\([nt\\])/g, (_, c) => ESCAPES[c]));
}

/** The fields of a request that the user changed. */
export function requestFields(params) {
  const { extra, ...fields } = params;
  return { ...extra, ...fields };
}

/** What new conversations begin with. */
export function savedDefaults() {
  try {
    const saved = JSON.parse(prefs.get("defaults"));
    return saved ? { system: String(saved.system ?? ""), params: saved.params ?? {} } : {};
  } catch {
    return {};
  }
}
