"""The pages as a person sees them: a real browser opens the files, offline, wide and narrow."""

import os
import re
import shutil

import pytest
from fakeprefix.report.comparison import write_comparison
from sealed_run import sealed_run

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PLOTS = {
    "report": {
        "prefill_against_depth",
        "measured_against_estimate",
        "waterfall",
        "cumulative",
        "fidelity",
        "residuals",
        "running_order",
    },
    "compare": {"compare"},
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("BROWSER_REQUIRED"), reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    first = sealed_run(results, "2026-01-01_000000_h_first", drawn=True)
    other = sealed_run(results, "2026-01-01_000000_h_other-and-slower", slower=1.5)
    write_comparison([first, other], results / "compare")
    return {"report": first / "report.html", "compare": results / "compare" / "compare.html"}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["report", "compare"])
def name(request):
    return request.param


@pytest.fixture
def opened(browser, pages, name):
    """Open a page with a width and a colour scheme; it must load nothing and complain of nothing."""
    contexts, problems, requests = [], [], []

    def open_page(width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(pages[name].as_uri(), wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert {url for url in requests if not url.startswith("data:")} == {pages[name].as_uri()}


def test_all_plots_are_drawn_and_the_verdict_comes_first(opened, name):
    page = opened()
    assert {figure.get_attribute("id") for figure in page.query_selector_all("figure")} == PLOTS[name]
    for svg in page.query_selector_all("figure svg"):
        box = svg.bounding_box()
        assert box["width"] > 400
        assert box["height"] > 200
        assert len(svg.query_selector_all("path")) > 20
    verdict = page.query_selector(".verdict").bounding_box()
    assert verdict["y"] + verdict["height"] < 900


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1200])
def test_no_table_is_cut_off_on_a_desk(opened, width, scheme):
    page = opened(width, scheme)
    tables = page.query_selector_all(".table")
    assert len(tables) >= 2
    for table in tables:
        seen, whole = table.evaluate("node => [node.clientWidth, node.scrollWidth]")
        assert whole <= seen, table.inner_text()[:200]


def test_no_figure_has_an_exponent(opened):
    text = opened().evaluate("document.body.innerText")
    assert not re.search(r"\d[eE][+-]\d", text)


@pytest.mark.parametrize("width", [390, 768, 800])
def test_a_phone_needs_no_horizontal_scrolling(opened, width):
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.query_selector(".verdict strong").bounding_box()["y"] < 300
    page.evaluate("window.scrollTo(500, 0)")
    assert page.evaluate("window.scrollX") == 0


def test_every_table_is_sorted_by_a_click_and_by_a_key(opened):
    page = opened()
    tables = page.query_selector_all("table.sortable")
    assert len(tables) >= 3
    for table in tables:
        heads = table.query_selector_all("thead th")
        assert all(head.get_attribute("role") == "button" for head in heads)
        before = sorted(row.inner_text() for row in table.query_selector_all("tbody tr"))
        for number, head in enumerate(heads):
            head.click()
            assert head.get_attribute("aria-sort") == "ascending"
            rising = column(table, number)
            head.press("Enter")
            assert head.get_attribute("aria-sort") == "descending"
            assert numbers(rising) == sorted(numbers(rising))
            falling = numbers(column(table, number))
            assert falling == sorted(falling, reverse=True)
        assert sorted(row.inner_text() for row in table.query_selector_all("tbody tr")) == before


def column(table, number):
    return [row.query_selector_all("td")[number].inner_text().strip() for row in table.query_selector_all("tbody tr")]


def numbers(cells):
    """Values of a column if all of it is plain numbers, else nothing to compare."""
    plain = [cell.replace(",", "") for cell in cells]
    try:
        return [float(cell) for cell in plain]
    except ValueError:
        return []


def test_sorting_is_by_value_and_leaves_dashes_at_the_end(opened, name):
    page = opened()
    page.evaluate(
        """() => {
            const body = document.querySelector("table.sortable tbody");
            const row = body.rows[0];
            body.replaceChildren();
            for (const text of ["9 [8, 10]", "\u2013", "1,200 [1,100, 1,300]", "\u22123", "10 (2)"]) {
                const copy = row.cloneNode(true);
                copy.cells[1].textContent = text;
                body.appendChild(copy);
            }
        }"""
    )
    table = page.query_selector("table.sortable")
    head = table.query_selector_all("thead th")[1]
    head.click()
    assert column(table, 1) == ["\u22123", "9 [8, 10]", "10 (2)", "1,200 [1,100, 1,300]", "\u2013"]
    head.click()
    assert column(table, 1) == ["1,200 [1,100, 1,300]", "10 (2)", "9 [8, 10]", "\u22123", "\u2013"]


def test_light_and_dark_can_both_be_read(opened):
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme)
        ink, paper = page.evaluate(
            "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        # WCAG 2.1, 1.4.3: at least 4.5 to 1
        assert contrast(ink, paper) > 4.5
        assert (luminance(paper) > 0.5) == (scheme == "light")


def luminance(colour):
    """Relative luminance of ``rgb(r, g, b)``, WCAG 2.1."""
    values = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_it_prints_on_paper(opened, tmp_path):
    page = opened()
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
