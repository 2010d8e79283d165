"""What scripts/test-web does with the web page: one function a flow.

A flow gets a `Page` of scripts/test-web and fails by an exception. `mock`
marks flows that need the answers of scripts/web_mock.py.
"""

import json
import random

from playwright.sync_api import expect
from web_mock import MARKDOWN

FLOWS = []
BOTH = ("desktop-light", "phone-dark")
DESKTOP = ("desktop-light",)
ALL = ("desktop-light", "desktop-dark", "phone-light", "phone-dark")


def flow(variants=BOTH, mock=True, screens=False):
    def mark(function):
        function.variants, function.mock, function.screens = variants, mock, screens
        FLOWS.append(function)
        return function

    return mark


def same(found, wanted):
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"


# ------------------------------------------------------------ answers


@flow(mock=False)
def any_model_answers(t):
    """What any server and model must give: streaming, stop, another answer, an edited question."""
    t.settings()
    t.page.locator("#p-max_tokens").fill("48")
    t.close_settings()
    t.send("Name three metals.")
    assert t.text().strip(), "the answer is empty"
    expect(t.last().locator(".stats")).to_contain_text("tokens/s")
    t.last().hover()
    t.button("Answer again", t.last()).click()
    t.done()
    expect(t.last().locator(".versions")).to_contain_text("2/2")
    t.settings()
    t.page.locator("#p-max_tokens").fill("4000")
    t.close_settings()
    t.submit("Slow down: count from one to a thousand, in words.")
    expect(t.last().locator("> .md > *").first).to_be_visible(timeout=60_000)
    t.page.locator("#send").click()
    expect(t.last().locator(".stats")).to_contain_text("stopped")
    assert t.text().strip(), "what came before the stop is gone"
    t.reload()
    same(t.page.locator(".msg").count(), 4)


@flow()
def streams_and_counts(t):
    t.send("hello there")
    same(t.text(), "Answer 1 to: hello there")
    same(t.last().locator(".stats").inner_text().replace("\n", ""), stats_of(t))
    body = t.body()
    same(body, {
        "messages": [{"role": "user", "content": "hello there"}],
        "model": "smollm2-135m-instruct",
        "stream": True,
        "stream_options": {"include_usage": True},
    })
    t.send("and again")
    roles = [message["role"] for message in t.body()["messages"]]
    same(roles, ["user", "assistant", "user"])
    same(t.page.title(), "hello there · wootz")
    assert not t.page.locator("#input").input_value()


def stats_of(t):
    text = t.last().locator(".stats").inner_text().replace("\n", "")
    for part in ("42 tokens", "48.3 tokens/s", "first after", "prompt 1,200, 1,024 cached at 2,150/s"):
        assert part in text, f"{part!r} is not in {text!r}"
    return text


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
    wide = t.page.evaluate("document.querySelector('#scroll').scrollWidth > document.querySelector('#scroll').clientWidth")
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
    on = md.evaluate("md => [...md.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))")
    same(on, [])
    assert "<script>window.hacked = 1</script>" in md.inner_text()
    # Trusted types refuse markup from text anywhere in the page.
    refused = t.page.evaluate("(() => { try { document.body.innerHTML = '<p>'; return false } catch { return true } })()")
    assert refused, "the page accepts markup from text"
    t.problems.clear()  # the refusal itself


@flow(DESKTOP)
def growing_text_ends_like_whole_text(t):
    """Random texts, shown in random steps, must end as the same text shown at once."""
    rng = random.Random(6)
    pieces = ["**", "*", "_", "`", "```", "```py\n", "\n", "\n\n", "- ", "1. ", "2.", "  ", "    ", "> ", "# ", "|", "|-|-|", "a", "word ", "x_y", "[l](", "https://example.org/", ")", "]", "\\", "~~", "<b>", "&amp;", "\t", "\r\n", "---", "- [ ] ", "$$", "é", "「", "\U0001f600"]
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 60))) for _ in range(400)] + [MARKDOWN]
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
        "[a [b] c](https://x.org/(y) \"t\")": '<p><a href="https://x.org/(y)">a [b] c</a></p>',
        "[a](b) [c]": "<p><span>a</span> [c]</p>",
        "see https://x.org/a, or (https://x.org/b).": '<p>see <a href="https://x.org/a">https://x.org/a</a>, or (<a href="https://x.org/b">https://x.org/b</a>).</p>',
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
            for (const code of el.querySelectorAll('.code')) code.replaceWith('[' + code.querySelector('code').textContent + ']');
            for (const table of el.querySelectorAll('.table')) {
              const rows = [...table.querySelectorAll('tr')].map((row) => [...row.children].map((cell) => cell.innerHTML).join(' '));
              table.replaceWith(Object.assign(h('table'), { rows_: rows }));
            }
            const tables = [...el.querySelectorAll('table')].map((table) => table.rows_.join(' / '));
            for (const one of el.querySelectorAll('*')) {
              for (const name of one.getAttributeNames()) if (!['href', 'start', 'class'].includes(name)) one.removeAttribute(name);
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
    texts = ["[" * many, "*a " * many, "**a" * many, "*a_ " * many, "`" * many, "` `` " * many, ">" * many, "- " * many, "# " * many, "|" * many, "$$" * many, "\\(" * many, "<a" * many, "![[](" * many, "http://" + ")" * many, "~~a" * many, "\n".join("  " * n + "- a" for n in range(300)), "_a*" * many, '"' * many]
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
            if (!el.textContent && !el.querySelector('hr, li, blockquote')) throw new Error('nothing shown of ' + text.slice(0, 20));
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
    same([(m["role"], m["tool_call_id"], m["content"]) for m in messages[2:]], [("tool", "call_Pune", "31 °C"), ("tool", "call_Solingen", "12 °C")])
    same(t.page.locator(".tool-result").count(), 2)
    expect(t.page.locator(".results")).to_have_count(0)


@flow()
def stops(t):
    t.submit("slow answer")
    expect(t.last().locator("> .md")).to_contain_text("word5")
    expect(t.page.locator("#send")).to_have_attribute("aria-label", "Stop")
    t.page.locator("#send").click()
    expect(t.last().locator(".stats")).to_contain_text("stopped")
    assert "word5" in t.text()
    t.page.wait_for_timeout(300)
    kept = t.text()
    t.page.wait_for_timeout(300)
    same(t.text(), kept)
    assert t.mock.dropped == 1, "the server was not told"
    if not t.phone:
        t.submit("slow again")
        expect(t.last().locator("> .md")).to_contain_text("word3")
        t.page.keyboard.press("Escape")
        expect(t.last().locator(".stats")).to_contain_text("stopped")
    expect(t.page.locator("#send")).to_have_attribute("aria-label", "Send")
    t.send("hello")
    assert any(message["content"].startswith("word0 word1") for message in t.body()["messages"])


@flow()
def whole_and_cut_answers(t):
    t.send("plain reply")
    same(t.text(), "All at once.")
    t.send("short one")
    expect(t.last().locator(".stats")).to_contain_text("cut at the token limit")


# ------------------------------------------------------------ history


@flow()
def branches(t):
    t.send("first")
    t.send("second")
    t.button("Answer again", t.last()).click()
    t.done()
    same(len(t.body()["messages"]), 3)
    expect(t.last().locator(".versions")).to_contain_text("2/2")
    first = t.page.locator(".msg.user").first
    first.hover()
    t.button("Edit", first).click()
    box = first.locator("textarea")
    same(box.input_value(), "first")
    box.fill("changed")
    if t.phone:
        t.button("Send", first).click()
    else:
        box.press("Enter")
    t.done()
    same(t.page.locator(".msg").count(), 2)
    same(t.text(), "Answer 1 to: changed")
    same([message["content"] for message in t.body()["messages"]], ["changed"])
    t.button("Previous version", t.page.locator(".msg.user").first).click()
    same(t.page.locator(".msg").count(), 4)
    expect(t.last().locator(".versions")).to_contain_text("2/2")
    t.reload()
    same(t.page.locator(".msg").count(), 4)
    t.last().hover()
    t.button("Delete this and what follows", t.last()).click()
    same(t.page.locator(".msg").count(), 4)  # the other version shows
    expect(t.last().locator(".versions")).to_have_count(0)
    t.button("Undo").click()
    expect(t.last().locator(".versions")).to_contain_text("2/2")
    for _ in range(2):
        t.last().hover()
        t.button("Delete this and what follows", t.last()).click()
    same(t.page.locator(".msg").count(), 3)
    t.button("Answer this", t.page.locator(".msg.user").last).click()
    t.done()
    same(t.text(), "Answer 2 to: second")
    second = t.page.locator(".msg.user").nth(1)
    second.hover()
    t.button("Delete this and what follows", second).click()
    same(t.page.locator(".msg").count(), 2)


@flow()
def conversations(t):
    t.send("about swords")
    t.side()
    t.button("New chat", t.page.locator("#sidebar")).click()
    expect(t.page.locator("#empty")).to_be_visible()
    t.send("about bridges")
    t.side()
    items = t.page.locator(".item")
    same(items.locator(".item-title").all_inner_texts(), ["about bridges", "about swords"])
    t.page.locator("#search").fill("answer 1 to: about sw")
    same(items.locator(".item-title").all_inner_texts(), ["about swords"])
    same(items.locator("mark").inner_text(), "Answer 1 to: about sw")
    items.locator(".item-open").click()
    same(t.page.locator(".bubble").inner_text(), "about swords")
    t.side()
    t.page.locator("#search").fill("zeppelin")
    expect(t.page.locator("#list")).to_contain_text("Nothing found")
    t.page.locator("#search").fill("")
    items.nth(1).hover()
    t.button("More for about swords").click()
    t.page.get_by_role("menuitem", name="Rename").click()
    t.page.locator(".rename").fill("Blades")
    t.page.locator(".rename").press("Enter")
    expect(items.nth(1)).to_contain_text("Blades")
    items.nth(1).hover()
    t.button("More for Blades").click()
    t.page.get_by_role("menuitem", name="Delete").click()
    expect(items).to_have_count(1)
    expect(t.page.locator("#empty")).to_be_attached()
    t.button("Undo").click()
    expect(items).to_have_count(2)
    t.reload()
    t.side()
    expect(items).to_have_count(2)
    expect(items.nth(1)).to_contain_text("Blades")


@flow(DESKTOP)
def answers_go_on_behind(t):
    t.submit("slow one")
    expect(t.last().locator("> .md")).to_contain_text("word3")
    t.button("New chat", t.page.locator("#sidebar")).click()
    t.send("hello")
    expect(t.page.locator(".item .pulse")).to_have_count(1)
    t.page.locator(".item-open", has_text="slow one").click()
    expect(t.last().locator("> .md")).to_contain_text("word60")
    t.page.locator("#send").click()
    # A second tab sees the same conversations, and changes in the first.
    other = t.tab()
    expect(other.locator(".item")).to_have_count(2)
    t.send("more")
    other.locator(".item-open", has_text="slow one").click()
    expect(other.locator(".msg")).to_have_count(4)
    user = other.locator(".msg.user").first
    user.hover()
    user.get_by_role("button", name="Edit").click()
    other.locator(".edit textarea").fill("half an edit")
    t.send("still more")
    expect(other.locator(".msg")).to_have_count(6)
    same(other.locator(".edit textarea").input_value(), "half an edit")
    # Closing a tab in the middle keeps what came.
    t.submit("slow end")
    expect(t.last().locator("> .md")).to_contain_text("word60")
    t.reload()
    expect(t.last().locator("> .md")).to_contain_text("word20")
    expect(t.last().locator(".stats")).to_contain_text("stopped")


@flow()
def exports_and_imports(t):
    t.send("tool use")
    t.side()
    t.page.locator("#sidebar").get_by_role("button", name="New chat").click()
    t.mock.gate.set()
    t.send("think first")
    t.side()
    with t.page.expect_download() as download:
        t.page.locator("#export").click()
    data = json.loads(open(download.value.path(), encoding="utf-8").read())
    same((data["format"], data["version"], len(data["conversations"])), ("wootz-conversations", 1, 2))
    t.page.locator(".item").first.hover()
    t.button("More for think first").click()
    with t.page.expect_download() as download:
        t.page.get_by_role("menuitem", name="Export as Markdown").click()
    markdown = open(download.value.path(), encoding="utf-8").read()
    assert download.value.suggested_filename == "think-first.md"
    assert "## You\n\nthink first" in markdown and "> Reasoning:" in markdown and "The answer is **one**." in markdown
    t.settings()
    t.page.once("dialog", lambda dialog: dialog.accept())
    t.page.locator("#wipe").click()
    t.close_settings()
    t.side()
    expect(t.page.locator(".item")).to_have_count(0)

    def bring(name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        t.page.locator("#import-file").set_input_files({"name": name, "mimeType": "application/json", "buffer": text.encode()})

    bring("all.json", data)
    expect(t.page.locator(".item")).to_have_count(2)
    bring("all.json", data)
    expect(t.page.locator(".toast").last).to_contain_text("Nothing new")
    expect(t.page.locator(".item")).to_have_count(2)
    bring("chat.json", {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "from elsewhere"}, {"role": "assistant", "content": "yes"}]})
    expect(t.page.locator(".item")).to_have_count(3)
    for broken in ("{", "[1]", {"format": "wootz-conversations", "version": 2}, {"format": "wootz-conversations", "version": 1, "conversations": [{"next": "a", "nodes": [{"id": "a", "parent": "b", "role": "user"}, {"id": "b", "parent": "a", "role": "user"}]}]}):
        bring("broken.json", broken)
        expect(t.page.locator(".toast", has_text="cannot be imported").last).to_be_visible()
    expect(t.page.locator(".item")).to_have_count(3)
    t.page.locator(".item-open", has_text="tool use").click()
    same(t.page.locator(".calls .call").count(), 2)
    t.reload()
    same(t.page.locator(".calls .call").count(), 2)


# ------------------------------------------------------------ settings and errors


@flow()
def settings_send_what_was_changed(t):
    t.settings()
    t.page.locator("#system").fill("You are a smith.")
    t.page.locator("#p-temperature").fill("0.3")
    t.page.locator("#p-top_k").fill("20")
    t.page.locator("#p-min_p").fill("2")
    expect(t.page.locator("#p-min_p-note")).to_have_text("This must be from 0 to 1.")
    t.page.locator("#p-seed").fill("7")
    t.page.locator("#stop").fill("END\n\\n\\n")
    t.page.locator("#extra").fill('{"cache_prompt": false')
    expect(t.page.locator("#extra-error")).to_contain_text("Not valid JSON")
    t.page.locator("#extra").fill('{"messages": []}')
    expect(t.page.locator("#extra-error")).to_have_text("The page sets messages itself.")
    t.page.locator("#extra").fill('{"cache_prompt": false}')
    expect(t.page.locator("#extra-error")).to_be_hidden()
    t.page.locator("#params-keep").click()
    t.close_settings()
    expect(t.page.locator("#panel-count")).to_have_text("6")
    t.send("hello")
    body = t.body()
    same(body["messages"][0], {"role": "system", "content": "You are a smith."})
    sent = {key: body[key] for key in body if key not in ("messages", "model", "stream", "stream_options")}
    same(sent, {"temperature": 0.3, "top_k": 20, "seed": 7, "stop": ["END", "\n\n"], "cache_prompt": False})
    t.reload()
    t.settings()
    same(t.page.locator("#stop").input_value(), "END\n\\n\\n")
    t.button("Leave temperature to the server").click()
    same(t.page.locator("#p-temperature").input_value(), "")
    t.page.locator(".param", has_text="Top p").locator("input[type=range]").fill("0.5")
    same(t.page.locator("#p-top_p").input_value(), "0.5")
    t.close_settings()
    t.send("again")
    assert "temperature" not in t.body()
    same(t.body()["top_p"], 0.5)
    t.settings()
    t.page.locator("#params-reset").click()
    t.close_settings()
    t.send("plainly")
    same(set(t.body()), {"messages", "model", "stream", "stream_options"})
    t.page.locator("#model").select_option("qwen3-4b-thinking-2507-q4_k_m")
    t.send("other model")
    same(t.body()["model"], "qwen3-4b-thinking-2507-q4_k_m")
    expect(t.last().locator(".who")).to_contain_text("qwen3")
    t.side()
    t.page.locator("#sidebar").get_by_role("button", name="New chat").click()
    t.send("kept")
    same((t.body()["temperature"], t.body()["top_k"], t.body()["model"]), (0.3, 20, "qwen3-4b-thinking-2507-q4_k_m"))


@flow()
def asks_for_the_key(t):
    t.mock.key = "s3cret"
    t.reload()
    expect(t.page.locator("#banner")).to_contain_text("This server needs an API key.")
    t.send("hello")
    problem = t.last().locator(".problem")
    expect(problem).to_contain_text("The server wants an API key (401)")
    t.button("Enter the API key", problem).click()
    expect(t.page.locator("#key")).to_be_focused()
    t.page.keyboard.type("s3cret")
    t.page.keyboard.press("Tab")
    expect(t.page.locator("#banner")).to_be_hidden()
    t.close_settings()
    t.button("Try again", t.last()).click()
    t.done()
    same(t.text(), "Answer 1 to: hello")
    same(t.page.locator(".msg").count(), 2)
    expect(t.last().locator(".versions")).to_have_count(0)
    t.reload()
    expect(t.page.locator("#banner")).to_be_hidden()
    t.side()
    with t.page.expect_download() as download:
        t.page.locator("#export").click()
    assert "s3cret" not in open(download.value.path(), encoding="utf-8").read()


@flow()
def errors_are_told(t):
    for text, title, message in (
        ("refuse this", "The server refused the request (400)", "temperature must be from 0 to 5, found 9."),
        ("busy now", "The server is busy (429)", "The queue is full. Try again in 3 s."),
        ("break off", "The answer broke off", "before the answer was complete"),
        ("midway error", "The server failed while it answered", "The device was lost."),
    ):
        problem = t.send(text).locator(".problem")
        expect(problem.locator("strong")).to_have_text(title)
        expect(problem.locator("p")).to_contain_text(message)
    same(t.text(), "This one goes wrong")
    expect(t.page.locator("#live")).to_contain_text("The device was lost.")
    problem = t.send("once broken").locator(".problem")
    expect(problem).to_contain_text("The server failed (500)")
    t.button("Try again", problem).click()
    t.done()
    expect(t.last().locator("> .md")).to_contain_text("to: once broken")
    expect(t.last().locator(".versions")).to_have_count(0)


@flow()
def typed_text_survives(t):
    t.type("half a thou")
    t.reload()
    same(t.page.locator("#input").input_value(), "half a thou")
    t.send("first")
    t.type("a draft here")
    t.side()
    t.page.locator("#sidebar").get_by_role("button", name="New chat").click()
    same(t.page.locator("#input").input_value(), "")
    t.side()
    t.page.locator(".item-open").click()
    same(t.page.locator("#input").input_value(), "a draft here")
    t.context.set_offline(True)
    t.send("sent while away")
    expect(t.last().locator(".problem")).to_contain_text("No connection to the server")
    t.type("typed after")
    t.context.set_offline(False)
    t.reload()
    same(t.page.locator(".bubble").last.inner_text(), "sent while away")
    same(t.page.locator("#input").input_value(), "typed after")
    t.button("Try again", t.last()).click()
    t.done()
    same(t.text(), "Answer 2 to: sent while away")
    t.submit("slow now")
    expect(t.last().locator("> .md")).to_contain_text("word3")
    t.type("the next question")
    if not t.phone:
        t.page.locator("#input").press("Enter")
    same(t.page.locator("#input").input_value(), "the next question")


@flow(DESKTOP)
def works_where_nothing_is_kept(t):
    """A browser that refuses both kinds of storage says so, and the page still answers."""
    t.context.add_init_script(
        """Object.defineProperty(window, 'indexedDB', { value: undefined });
        Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no storage', 'SecurityError'); } });"""
    )
    t.reload()
    expect(t.page.locator(".toast")).to_contain_text("does not keep conversations")
    t.send("hello")
    same(t.text(), "Answer 1 to: hello")
    t.page.locator("#theme").click()
    t.settings()
    t.page.locator("#p-temperature").fill("0.5")
    t.page.locator("#key").fill("abc")
    t.page.locator("#new").click()
    t.send("again")
    expect(t.page.locator(".item")).to_have_count(2)


# ------------------------------------------------------------ keys, looks, reach


@flow(DESKTOP)
def keys(t):
    box = t.page.locator("#input")
    box.press_sequentially("one")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    same(box.input_value(), "one\ntwo")
    box.press("Enter")
    t.done()
    same(t.body()["messages"][0]["content"], "one\ntwo")
    box.press("ArrowUp")
    edit = t.page.locator(".edit textarea")
    expect(edit).to_be_focused()
    edit.press("Escape")
    expect(edit).to_have_count(0)
    expect(box).to_be_focused()
    t.page.keyboard.press("Control+k")
    expect(t.page.locator("#search")).to_be_focused()
    t.page.keyboard.type("one")
    t.page.keyboard.press("ArrowDown")
    expect(t.page.locator(".item-open").first).to_be_focused()
    t.page.keyboard.press("Enter")
    expect(box).to_be_focused()
    t.page.locator("#side-close").click()
    expect(t.page.locator("#side-open")).to_be_focused()
    t.page.keyboard.press("Control+k")
    expect(t.page.locator("#search")).to_be_focused()
    t.page.locator("#title").click()
    expect(t.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    t.page.keyboard.press("ArrowUp")
    expect(t.page.get_by_role("menuitem", name="Delete")).to_be_focused()
    t.page.keyboard.press("Escape")
    expect(t.page.locator("#menu")).to_be_hidden()
    t.page.locator("#panel-open").click()
    t.page.keyboard.press("Escape")
    expect(t.page.locator("#panel")).to_be_hidden()
    expect(t.page.locator("#panel-open")).to_be_focused()


@flow()
def follows_only_at_the_end(t):
    t.submit("long text")
    below = "(() => { const s = document.querySelector('#scroll'); return s.scrollHeight - s.clientHeight - s.scrollTop })()"
    expect(t.page.get_by_text("Part 12", exact=True)).to_be_attached()
    assert t.page.evaluate(below) < 30, "the newest text is not in view"
    t.page.evaluate("document.querySelector('#scroll').scrollTop -= 300")
    t.page.wait_for_timeout(100)
    at = t.page.evaluate("document.querySelector('#scroll').scrollTop")
    t.done()
    same(t.page.evaluate("document.querySelector('#scroll').scrollTop"), at)
    same(t.last().locator("h3").count(), 400)
    t.page.locator("#jump").click()
    t.page.wait_for_timeout(100)
    assert t.page.evaluate(below) < 30
    expect(t.page.locator("#jump")).to_be_hidden()


@flow(DESKTOP)
def a_long_answer_stays_smooth(t):
    """Tells how long the page was busy at a time; nothing is asserted about time."""
    t.page.evaluate("window.busy = []; new PerformanceObserver((l) => busy.push(...l.getEntries().map((e) => e.duration))).observe({ type: 'longtask' })")
    t.send("long text")
    same(t.last().locator("h3").count(), 400)
    busy = t.page.evaluate("busy")
    print(f"      tasks over 50 ms: {len(busy)}, longest {max(busy, default=0):.0f} ms, together {sum(busy):.0f} ms")


@flow(ALL)
def themes(t):
    dark = t.variant.endswith("dark")
    light = "rgb(252, 252, 251)"
    colour = lambda: t.page.evaluate("getComputedStyle(document.body).backgroundColor")
    same(colour() == light, not dark)
    t.side()
    t.page.locator("#theme").click()
    same(colour() == light, dark)
    t.reload()
    same(colour() == light, dark)
    t.settings()
    t.page.locator("#themes").get_by_text("System").click()
    same(colour() == light, not dark)


@flow(("phone-light", "phone-dark"))
def phone(t):
    t.send("hello phone")
    t.page.locator("#side-open").tap()
    expect(t.page.locator("#main")).to_have_attribute("inert", "")
    t.page.touchscreen.tap(370, 400)
    expect(t.page.locator("#sidebar")).to_have_class("sidebar closed")
    expect(t.page.locator("#main")).not_to_have_attribute("inert", "")
    t.settings()
    t.page.locator("#panel-close").tap()
    same(t.page.evaluate("document.documentElement.scrollWidth"), 390)
    t.type("one line")
    t.page.locator("#input").press("Enter")
    same(t.page.locator("#input").input_value(), "one line\n")
    small = t.page.evaluate("[...document.querySelectorAll('button')].filter(b => b.checkVisibility() && b.offsetParent && Math.min(b.offsetWidth, b.offsetHeight) < 32).map(b => b.ariaLabel || b.textContent)")
    same(small, [])


@flow(ALL)
def accessible(t):
    from axe_playwright_python.sync_playwright import Axe

    def check(where):
        found = Axe().run(t.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).response["violations"]
        lines = [f"{where}: {v['id']}: {v['help']}: {[n['html'][:160] + ' ' + n['failureSummary'][:200] for n in v['nodes'][:3]]}" for v in found]
        assert not lines, "\n".join(lines)

    t.page.emulate_media(reduced_motion="reduce")
    check("empty")
    t.send("markdown")
    t.mock.gate.set()
    t.send("think")
    t.page.locator(".think summary").click()
    t.send("tool")
    t.send("refuse")
    t.send("hello")
    t.page.wait_for_timeout(300)
    check("messages")
    t.side()
    t.page.wait_for_timeout(300)
    t.page.locator("#search").fill("e")
    check("list")
    t.settings() if not t.phone else t.page.keyboard.press("Escape")
    t.settings()
    t.page.locator("#p-top_p").fill("3")
    check("settings")


@flow(ALL, screens=True)
def screenshots(t):
    t.mock.gate.set()
    t.page.wait_for_timeout(200)
    t.shot("1-empty")
    for text in ("hello, why does iron rust?", "think about two ways to temper a chisel", "tool use for the weather in Pune and Solingen", "refuse"):
        t.send(text)
        t.side()
        t.page.locator("#sidebar").get_by_role("button", name="New chat").click()
    t.send("How do I temper a knife blade at home? I have an oven, a steel bar of unknown grade, and patience.")
    t.button("Answer again", t.last()).click()
    t.done()
    t.send("markdown please, with a table and code")
    t.page.mouse.move(700, 300)
    t.shot("2-markdown-end")
    t.page.evaluate("document.querySelector('#scroll').scrollTop = 0")
    t.page.wait_for_timeout(200)
    t.shot("3-markdown-top")
    t.page.evaluate("document.querySelector('#scroll').scrollTop = 700")
    t.page.wait_for_timeout(200)
    t.shot("4-markdown-middle")
    t.side()
    t.page.wait_for_timeout(300)
    t.page.locator("#search").fill("temper")
    t.shot("5-search")
    t.page.locator("#search").fill("")
    t.page.locator(".item-open", has_text="think about").click()
    t.page.locator(".think summary").click()
    t.page.wait_for_timeout(200)
    t.shot("6-reasoning")
    t.side()
    t.page.locator(".item-open", has_text="tool use").click()
    t.page.wait_for_timeout(300)
    t.shot("7-tools")
    t.side()
    t.page.locator(".item-open", has_text="refuse").click()
    t.page.wait_for_timeout(300)
    t.shot("8-error")
    t.settings()
    t.page.locator("#system").fill("You are a patient smith who explains each step.")
    t.page.locator("#p-temperature").fill("0.6")
    t.page.locator("#p-top_k").fill("-3")
    t.page.wait_for_timeout(200)
    t.shot("9-settings")
    t.page.locator(".panel-body").evaluate("panel => panel.scrollTop = 9999")
    t.page.wait_for_timeout(200)
    t.shot("10-settings-end")
    t.close_settings()
    t.side()
    t.page.wait_for_timeout(300)
    t.page.locator(".item .tool").nth(1).click()
    t.page.wait_for_timeout(200)
    t.shot("11-menu")
    t.page.keyboard.press("Escape")
    t.page.locator(".item-open", has_text="hello, why").click()
    user = t.page.locator(".msg.user").first
    user.hover()
    t.button("Edit", user).click()
    t.shot("12-edit")
    t.button("Cancel", user).click()
    t.submit("slow words, many of them, until I stop them")
    expect(t.last().locator("> .md")).to_contain_text("word40")
    t.shot("13-streaming")
    t.page.locator("#send").click()
    t.mock.gate.clear()
    t.submit("wait for it")
    t.page.wait_for_timeout(2600)
    t.shot("14-waiting")
    t.page.locator("#send").click()
    t.mock.key = "other"
    t.reload()
    t.button("Delete this and what follows", t.last()).click()
    t.page.wait_for_timeout(300)
    t.shot("15-banner-toast")
