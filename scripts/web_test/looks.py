"""Flows: scrolling, themes, phones, accessibility and screenshots."""

from common import ALL, DESKTOP, flow, same
from playwright.sync_api import expect


@flow()
def follows_only_at_the_end(t):
    t.submit("long text")
    below = """(() => {
      const { scrollHeight, clientHeight, scrollTop } = document.querySelector('#scroll');
      return scrollHeight - clientHeight - scrollTop;
    })()"""
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
    t.page.evaluate(
        """window.busy = [];
        new PerformanceObserver((list) => busy.push(...list.getEntries().map((entry) => entry.duration)))
          .observe({ type: 'longtask' });"""
    )
    t.send("long text")
    same(t.last().locator("h3").count(), 400)
    busy = t.page.evaluate("busy")
    print(
        f"      tasks over 50 ms: {len(busy)}, longest {max(busy, default=0):.0f} ms, together {sum(busy):.0f} ms"
    )


@flow(ALL)
def themes(t):
    dark = t.variant.endswith("dark")
    light = "rgb(252, 252, 251)"

    def colour():
        return t.page.evaluate("getComputedStyle(document.body).backgroundColor")

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
    small = t.page.evaluate(
        """[...document.querySelectorAll('button')]
          .filter((b) => b.offsetParent && b.checkVisibility() && Math.min(b.offsetWidth, b.offsetHeight) < 32)
          .map((b) => b.ariaLabel || b.textContent)"""
    )
    same(small, [])


@flow(ALL)
def accessible(t):
    from axe_playwright_python.sync_playwright import Axe

    def check(where):
        found = (
            Axe()
            .run(
                t.page,
                options={
                    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
                },
            )
            .response["violations"]
        )
        lines = [
            f"{where}: {v['id']}: {v['help']}: {[n['html'][:160] + ' ' + n['failureSummary'][:200] for n in v['nodes'][:3]]}"
            for v in found
        ]
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
    for text in (
        "hello, why does iron rust?",
        "think about two ways to temper a chisel",
        "tool use for the weather in Pune and Solingen",
        "refuse",
    ):
        t.send(text)
        t.side()
        t.page.locator("#sidebar").get_by_role("button", name="New chat").click()
    t.send(
        "How do I temper a knife blade at home? I have an oven, a steel bar of unknown grade, and patience."
    )
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
