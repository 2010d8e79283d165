// Colours for code: comments, strings, numbers, keywords and calls, told apart by one pattern per family of languages.
// It is no parser. What it does not know stays plain.

import { h } from "./dom.js";

const LIMIT = 40_000; // characters; longer code stays plain

const WORDS = new Set(
  `abstract and as assert async await break case catch class const continue crate def default defer del do elif else enum
  except export extends extern false final finally fn for from func function global go goto if impl implements import in
  include inline instanceof interface is lambda let local loop match mod module move mut namespace new nil none None not
  null of or override package pass private protected pub public raise readonly ref return select self Self static struct
  super switch template then this throw trait true True False try type typedef typeof undefined union unsafe until use
  using var virtual void when where while with yield int float double bool char string str byte long short unsigned
  SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE ALTER DROP JOIN LEFT RIGHT INNER OUTER ON GROUP BY ORDER HAVING
  LIMIT AS AND OR NOT NULL VALUES SET PRIMARY KEY DISTINCT UNION CASE WHEN THEN ELSE END echo fi done esac export`
    .split(/\s+/)
    .filter(Boolean),
);

const STRING = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const REST = String.raw`(?<number>\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*)|(?<word>[A-Za-z_$][\w$]*!?)`;

const pattern = (comment, string) => new RegExp(`(?<comment>${comment})|(?<string>${string})|${REST}`, "g");
const SLASHES = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;

const FAMILIES = [
  [
    "c cc cpp cxx h hpp cs csharp java kotlin kt swift scala go golang dart php zig proto wgsl glsl hlsl metal cuda cu objc css scss less",
    pattern(SLASHES, STRING),
  ],
  // A quote may begin a lifetime: only a closed one of one character is a string.
  ["rust rs", pattern(SLASHES, String.raw`"(?:[^"\\]|\\.)*"?|'(?:[^'\\\n]|\\[^\n]{1,8})'`)],
  [
    "js javascript mjs jsx ts typescript tsx json json5 jsonc",
    pattern(SLASHES, STRING + "|`(?:[^`\\\\]|\\\\[\\s\\S])*`?"),
  ],
  ["py python python3", pattern("#[^\\n]*", String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|` + STRING)],
  [
    "sh bash zsh shell console fish rb ruby toml yaml yml ini conf r perl pl make makefile dockerfile nix elixir julia cmake",
    pattern("(?<=^|\\s)#[^\\n]*", STRING),
  ],
  ["sql lua haskell hs ada elm", pattern("--[^\\n]*", STRING)],
  [
    "html xml svg vue",
    /(?<comment><!--[\s\S]*?(?:-->|$))|(?<string>"[^"\n]*"|'[^'\n]*')|(?<word><\/?[A-Za-z][\w:-]*|\/?>)/g,
  ],
];

const BY_NAME = new Map(FAMILIES.flatMap(([names, found]) => names.split(" ").map((name) => [name, found])));

/** Wraps the tokens of a code element in spans with a class each. */
export function highlight(code, language) {
  const text = code.textContent;
  const name = language.toLowerCase();
  if (text.length > LIMIT) return;
  if (name === "diff" || name === "patch") return diff(code, text);
  const found = BY_NAME.get(name);
  if (!found) return;
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(found)) {
    const { comment, string, number, word } = match.groups;
    let kind = comment ? "c" : string ? "s" : number ? "n" : null;
    if (word) {
      if (word.includes("<") || word.includes(">") || WORDS.has(word)) kind = "k";
      else if (word.endsWith("!") || text[match.index + word.length] === "(") kind = "f";
    }
    if (
      string &&
      /json/.test(name) &&
      /^\s*:/.test(text.slice(match.index + string.length, match.index + string.length + 8))
    )
      kind = "f";
    if (!kind) continue;
    if (match.index > last) parts.push(text.slice(last, match.index));
    parts.push(h("span", { class: `t-${kind}` }, match[0]));
    last = match.index + match[0].length;
  }
  if (last < text.length) parts.push(text.slice(last));
  code.replaceChildren(...parts);
}

function diff(code, text) {
  const lines = text.split(/(?<=\n)/);
  const kinds = { "+": "t-add", "-": "t-del", "@": "t-k" };
  code.replaceChildren(...lines.map((line) => (kinds[line[0]] ? h("span", { class: kinds[line[0]] }, line) : line)));
}
