"""Flows: asking and answering, history, settings, errors and keys."""

import json
from pathlib import Path

from common import DESKTOP, flow, same
from playwright.sync_api import expect


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
    t.shot("any-model")
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
    same(
        body,
        {
            "messages": [{"role": "user", "content": "hello there"}],
            "model": "smollm2-135m-instruct",
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
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
    t.button("Continue", t.last()).click()
    t.done()
    same(t.text(), "This is cut, and goes on.")
    same(t.body()["messages"][-1], {"role": "assistant", "content": "This is cut"})
    same(t.page.locator(".msg").count(), 4)
    expect(t.button("Continue", t.last())).to_have_count(0)


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
    data = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    same((data["format"], data["version"], len(data["conversations"])), ("wootz-conversations", 1, 2))
    t.page.locator(".item").first.hover()
    t.button("More for think first").click()
    with t.page.expect_download() as download:
        t.page.get_by_role("menuitem", name="Export as Markdown").click()
    markdown = Path(download.value.path()).read_text(encoding="utf-8")
    assert download.value.suggested_filename == "think-first.md"
    assert (
        "## You\n\nthink first" in markdown
        and "> Reasoning:" in markdown
        and "The answer is **one**." in markdown
    )
    t.settings()
    t.page.once("dialog", lambda dialog: dialog.accept())
    t.page.locator("#wipe").click()
    t.close_settings()
    t.side()
    expect(t.page.locator(".item")).to_have_count(0)

    def bring(name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        t.page.locator("#import-file").set_input_files(
            {"name": name, "mimeType": "application/json", "buffer": text.encode()}
        )

    bring("all.json", data)
    expect(t.page.locator(".item")).to_have_count(2)
    bring("all.json", data)
    expect(t.page.locator(".toast").last).to_contain_text("Nothing new")
    expect(t.page.locator(".item")).to_have_count(2)
    bring(
        "chat.json",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "from elsewhere"},
                {"role": "assistant", "content": "yes"},
            ]
        },
    )
    expect(t.page.locator(".item")).to_have_count(3)
    for broken in (
        "{",
        "[1]",
        {"format": "wootz-conversations", "version": 2},
        {
            "format": "wootz-conversations",
            "version": 1,
            "conversations": [
                {
                    "next": "a",
                    "nodes": [
                        {"id": "a", "parent": "b", "role": "user"},
                        {"id": "b", "parent": "a", "role": "user"},
                    ],
                }
            ],
        },
    ):
        bring("broken.json", broken)
        expect(t.page.locator(".toast", has_text="cannot be imported").last).to_be_visible()
    expect(t.page.locator(".item")).to_have_count(3)
    t.page.locator(".item-open", has_text="tool use").click()
    same(t.page.locator(".calls .call").count(), 2)
    t.reload()
    same(t.page.locator(".calls .call").count(), 2)


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
    context = t.page.locator("#context")
    expect(context).to_have_text("1,242 of 8,192 tokens of context used")
    t.page.locator("#model").select_option("of-a-server-that-tells-less")
    expect(context).to_be_hidden()
    t.page.locator("#model").select_option("qwen3-4b-thinking-2507-q4_k_m")
    expect(context).to_have_class("full")
    t.send("other model")
    same(t.body()["model"], "qwen3-4b-thinking-2507-q4_k_m")
    expect(t.last().locator(".who")).to_contain_text("qwen3")
    t.side()
    t.page.locator("#sidebar").get_by_role("button", name="New chat").click()
    t.send("kept")
    same(
        (t.body()["temperature"], t.body()["top_k"], t.body()["model"]),
        (0.3, 20, "qwen3-4b-thinking-2507-q4_k_m"),
    )


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
    assert "s3cret" not in Path(download.value.path()).read_text(encoding="utf-8")


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
