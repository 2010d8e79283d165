"""Flows: what becomes of the text, reasoning and calls that a model writes."""

import json
import random

from common import DESKTOP, flow, same
from mock_server import MARKDOWN
from playwright.sync_api import expect


@flow()
def markdown_is_shown(t):
    t.send("markdown please")
    md = t.last().locator("> .md")
    same(md.locator("h2.h1").inner_text(), "Tempering steel")
    same(md.locator("ol > li").count(), 3)
    same(md.locator("ol > li ul > li").count(), 2)
    same(md.locator("li.task input:checked").count(), 1)
    same(md.locator("s").inner_text(), "twice")
    same(md.locator("td.right").first.inner_text(), "220 °C")
    same(md.locator("tbody tr").count(), 3)
    same(md.locator("blockquote").inner_text(), "Watch the colour, not the clock.")
    assert "snake_case_names, 2 * 3 * 4" in md.inner_text()
    assert "*escaped*" in md.inner_text()
    same(md.locator("code.formula").inner_text(), "E = mc^2")
    links = md.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel, a.target])")
    same([link[0] for link in links], ["https://example.org/tempering", "https://example.org/a_(b)"])
    assert all(link[1:] == ["noopener noreferrer", "_blank"] for link in links)
    rust = MARKDOWN.split("```rust\n")[1].split("\n```")[0]
    same(md.locator(".code code").first.evaluate("code => code.textContent"), rust)
    assert md.locator(".t-k").count() > 3 and md.locator(".t-c").count() == 3
    md.locator(".copy").first.click()
    expect(md.locator(".copy").first).to_have_text("Copied")
    same(t.page.evaluate("navigator.clipboard.readText()"), rust)
    wide = t.page.evaluate(
        "document.querySelector('#scroll').scrollWidth > document.querySelector('#scroll').clientWidth"
    )
    assert not wide, "the messages are wider than the page"


@flow(DESKTOP)
def nothing_a_model_writes_runs(t):
    t.send("hostile text")
    md = t.last().locator("> .md")
    same(t.page.evaluate("window.hacked ?? null"), None)
    same(md.locator("script, img, svg:not(.icon), b, i, iframe").count(), 0)
    hrefs = md.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert all(href.startswith(("https://", "mailto:")) for href in hrefs), hrefs
    assert "mailto:smith@example.org" in hrefs and "https://example.org/p.png" in hrefs
    on = md.evaluate(
        "md => [...md.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    )
    same(on, [])
    assert "<script>window.hacked = 1</script>" in md.inner_text()
    # Trusted types refuse markup from text anywhere in the page.
    refused = t.page.evaluate(
        "(() => { try { document.body.innerHTML = '<p>'; return false } catch { return true } })()"
    )
    assert refused, "the page accepts markup from text"
    t.problems.clear()  # the refusal itself


@flow(DESKTOP)
def growing_text_ends_like_whole_text(t):
    """Random texts, shown in random steps, must end as the same text shown at once."""
    rng = random.Random(6)
    pieces = "**¦*¦_¦`¦```¦```py\n¦\n¦\n\n¦- ¦1. ¦2.¦  ¦    ¦> ¦# ¦|¦|-|-|¦a¦word ¦x_y¦[l](¦https://example.org/¦)¦]"
    pieces += "¦\\¦~~¦<b>¦&amp;¦\t¦\r\n¦---¦- [ ] ¦$$¦é¦「¦\U0001f600"
    pieces = pieces.split("¦")
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 60))) for _ in range(400)] + [
        MARKDOWN
    ]
    wrong = t.page.evaluate(
        """async ([texts, seed]) => {
          const { MarkdownView, render } = await import('./markdown.js');
          const { h } = await import('./dom.js');
          let state = seed;
          const random = (n) => (state = (state * 1103515245 + 12345) % 2147483648) % n;
          const wrong = [];
          for (const text of texts) {
            const grown = h('div'), view = new MarkdownView(grown);
            for (let end = 0; end < text.length; end += 1 + random(9)) view.update(text.slice(0, end), true);
            view.update(text, false);
            const whole = h('div', {}, render(text));
            if (grown.innerHTML !== whole.innerHTML) wrong.push([text, grown.innerHTML, whole.innerHTML]);
          }
          return wrong;
        }""",
        [texts, 7],
    )
    same(wrong[:1], [])


@flow(DESKTOP)
def markdown_cases(t):
    """Small texts and the elements that they must become."""
    cases = {
        "*a* _b_ **c** ***d***": "<p><em>a</em> <em>b</em> <strong>c</strong> <em><strong>d</strong></em></p>",
        "a*b*c a_b_c 2 * 3 * 4": "<p>a<em>b</em>c a_b_c 2 * 3 * 4</p>",
        "**「強調」**です": "<p><strong>「強調」</strong>です</p>",
        "``a ` b``": "<p><code>a ` b</code></p>",
        "**a `**` b**": "<p><strong>a <code>**</code> b</strong></p>",
        "# Head #\ntext": '<h2 class="h1">Head</h2><p>text</p>',
        "C# is\n#not": "<p>C# is<br>#not</p>",
        "1. a\n\n   b\n2. c": '<ol class="loose"><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>',
        "3. a\n  - b\n4. c": '<ol start="3"><li>a<ul><li>b</li></ul></li><li>c</li></ol>',
        "- a\n\ntext": "<ul><li>a</li></ul><p>text</p>",
        "- a\n  ```\n  x\n\n    y\n  ```": "<ul><li>a[x\n\n  y]</li></ul>",
        "```\n\tx": "[\tx]",
        "~~~\n```\n~~~": "[```]",
        "> a\n> > b\nc": "<blockquote><p>a</p><blockquote><p>b<br>c</p></blockquote></blockquote>",
        "a\n---\nb": "<p>a</p><hr><p>b</p>",
        "* * *": "<hr>",
        "a | b": "<p>a | b</p>",
        "a|b\n-|-\n\\||`x`": "<table>a b / | <code>x</code></table>",
        '[a [b] c](https://x.org/(y) "t")': '<p><a href="https://x.org/(y)">a [b] c</a></p>',
        "[a](b) [c]": "<p><span>a</span> [c]</p>",
        "at https://x.org/a, or": '<p>at <a href="https://x.org/a">https://x.org/a</a>, or</p>',
        "(https://x.org/b).": '<p>(<a href="https://x.org/b">https://x.org/b</a>).</p>',
        "x < y & z &lt;b&gt;": "<p>x &lt; y &amp; z &lt;b&gt;</p>",
        "costs $5 and $6": "<p>costs $5 and $6</p>",
        "\\[ a_1 *b* \\]": "<p><code>a_1 *b*</code></p>",
        "2023. was\n\nnot": '<ol start="2023"><li>was</li></ol><p>not</p>',
        "it was\n2023. a year": "<p>it was<br>2023. a year</p>",
    }
    found = t.page.evaluate(
        """async (texts) => {
          const { render } = await import('./markdown.js');
          const { h } = await import('./dom.js');
          return texts.map((text) => {
            const el = h('div', {}, render(text));
            for (const block of el.querySelectorAll('.code')) {
              block.replaceWith('[' + block.querySelector('code').textContent + ']');
            }
            for (const table of el.querySelectorAll('.table')) {
              const cells = (row) => [...row.children].map((cell) => cell.innerHTML).join(' ');
              const rows = [...table.querySelectorAll('tr')].map(cells);
              table.replaceWith(Object.assign(h('table'), { rows_: rows }));
            }
            const tables = [...el.querySelectorAll('table')].map((table) => table.rows_.join(' / '));
            for (const one of el.querySelectorAll('*')) {
              const extra = one.getAttributeNames().filter((name) => !['href', 'start', 'class'].includes(name));
              for (const name of extra) one.removeAttribute(name);
              if (one.matches('code, span')) one.removeAttribute('class');
            }
            return el.innerHTML.replace(/<table><\\/table>/g, () => '<table>' + tables.shift() + '</table>');
          });
        }""",
        list(cases),
    )
    for (text, wanted), html in zip(cases.items(), found):
        assert html == wanted, f"{text!r} gives {html!r}, wanted {wanted!r}"


@flow(DESKTOP)
def odd_texts_end(t):
    """Texts that cost a careless parser minutes or the stack."""
    many = 10_000
    texts = [
        "[" * many,
        "*a " * many,
        "**a" * many,
        "*a_ " * many,
        "`" * many,
        "` `` " * many,
        ">" * many,
        "- " * many,
        "# " * many,
        "|" * many,
        "$$" * many,
        "\\(" * many,
        "<a" * many,
        "![[](" * many,
        "http://" + ")" * many,
        "~~a" * many,
        "\n".join("  " * n + "- a" for n in range(300)),
        "_a*" * many,
        '"' * many,
    ]
    t.page.evaluate(
        """async (texts) => {
          const { MarkdownView } = await import('./markdown.js');
          for (const text of texts) {
            const el = document.createElement('div');
            document.body.append(el);
            const view = new MarkdownView(el);
            view.update(text.slice(0, text.length / 2), true);
            view.update(text, true);
            view.update(text, false);
            el.getBoundingClientRect();
            if (!el.textContent && !el.querySelector('hr, li, blockquote')) throw new Error('no ' + text.slice(0, 20));
            el.remove();
            const code = document.createElement('div');
            new MarkdownView(code).update('```js\\n' + text.slice(0, 30000) + '\\n```\\n', false);
          }
        }""",
        texts,
    )


@flow()
def reasoning_folds(t):
    t.submit("think about it")
    think = t.page.locator(".think")
    expect(think).to_have_attribute("open", "")
    expect(think.locator("summary")).to_have_text("Thinking")
    expect(think.locator("em")).to_have_text("thought")
    expect(think).to_contain_text("The first is better.")
    t.mock.gate.set()
    t.done()
    same(t.text(), "The answer is one.")
    expect(think).not_to_have_attribute("open", "")
    expect(think.locator("summary")).to_contain_text("Thought for")
    think.locator("summary").click()
    expect(think.locator("li").first).to_be_visible()
    t.send("more")
    expect(think).to_have_attribute("open", "")
    assert all("reasoning_content" not in message for message in t.body()["messages"])


@flow()
def tools_are_called_and_answered(t):
    t.send("tool use")
    calls = t.page.locator(".calls .call")
    same(calls.count(), 2)
    same(calls.first.locator("code").inner_text(), "get_weather")
    same(json.loads(calls.nth(1).locator("pre").inner_text()), {"city": "Solingen", "unit": "celsius"})
    boxes = t.page.locator(".results textarea")
    boxes.nth(0).fill("31 °C")
    boxes.nth(1).fill("12 °C")
    t.button("Send results").click()
    expect(t.last().locator("> .md")).to_have_text("The tools say: 31 °C and 12 °C.")
    messages = t.body()["messages"]
    same([call["id"] for call in messages[1]["tool_calls"]], ["call_Pune", "call_Solingen"])
    same(
        [(m["role"], m["tool_call_id"], m["content"]) for m in messages[2:]],
        [("tool", "call_Pune", "31 °C"), ("tool", "call_Solingen", "12 °C")],
    )
    same(t.page.locator(".tool-result").count(), 2)
    expect(t.page.locator(".results")).to_have_count(0)
