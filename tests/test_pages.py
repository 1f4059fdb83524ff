"""The built site in a real browser, as a reader meets it: wide, on a phone, dark, offline."""

import functools
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
import yaml
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not SITE.is_dir(), reason="the book is not built: run `make book`"),
]


def pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [f"{name}.html" for name in (toc["root"], *chapters)]


CHAPTERS = [f"book/{p.stem}.html" for p in (ROOT / "book").glob("*.ipynb")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()


def serve(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    yield from serve(SITE)


@dataclass
class Visit:
    """One page in one window, with everything that went wrong on the way."""

    page: Page
    faults: list[str] = field(default_factory=list)


def visit(browser: Browser, site: str, path: str, size: dict[str, int], scheme: str) -> Visit:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    seen = Visit(context.new_page())
    seen.page.on(
        "console",
        lambda m: seen.faults.append(f"console: {m.text}") if m.type == "error" else None,
    )
    seen.page.on("pageerror", lambda error: seen.faults.append(f"script: {error}"))
    seen.page.on("requestfailed", lambda r: seen.faults.append(f"failed: {r.url}"))
    seen.page.on(
        "request",
        lambda r: (
            None
            if r.url.startswith((site, "data:", "blob:"))
            else seen.faults.append(f"external: {r.url}")
        ),
    )
    seen.page.on(
        "response",
        lambda r: seen.faults.append(f"{r.status}: {r.url}") if r.status >= 400 else None,
    )
    seen.page.goto(f"{site}/{path}", wait_until="networkidle")
    seen.page.wait_for_function("() => !window.MathJax || window.MathJax.startup?.promise")
    seen.page.evaluate("() => window.MathJax?.startup?.promise")
    seen.faults += seen.page.evaluate(LOOK)
    return seen


LOOK = r"""() => {
  const faults = [];
  const start = element => element.textContent.slice(0, 60);
  for (const img of document.querySelectorAll("img")) {
    if (!img.alt.trim()) faults.push(`no alt text: ${img.src}`);
    if (img.complete && !img.naturalWidth) faults.push(`broken image: ${img.src}`);
  }
  for (const math of document.querySelectorAll(".math"))
    if (!math.querySelector("mjx-container")) faults.push(`math not typeset: ${start(math)}`);
  for (const error of document.querySelectorAll("mjx-merror, [data-mjx-error]"))
    faults.push(`math error: ${start(error)}`);
  const { clientWidth, scrollWidth } = document.documentElement;
  if (scrollWidth > clientWidth) {
    const wide = [...document.querySelectorAll("main *")]
      .find(e => e.getBoundingClientRect().right > clientWidth + 1);
    faults.push(`scrolls sideways: ${scrollWidth} px, ${wide?.outerHTML.slice(0, 99)}`);
  }
  const body = document.querySelector("article, main, body").cloneNode(true);
  body.querySelectorAll("pre, code, script, style, mjx-container").forEach(e => e.remove());
  const raw = body.textContent.match(/\{(eq|ref|cite|numref|prf:ref)[^}]*\}`|:::+|\$\$|\\\(|\\\[/);
  if (raw) faults.push(`markup left raw: ${raw[0]}`);
  return faults;
}"""


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("path", pages())
def test_page(browser: Browser, site: str, path: str, size: dict[str, int]) -> None:
    seen = visit(browser, site, path, size, "light")
    try:
        wait_for_theme(seen.page, "light")
        assert seen.page.locator("article h1").count() == 1
        assert dead_links(seen.page, SITE, site) == []
        seen.page.emulate_media(color_scheme="dark")
        wait_for_theme(seen.page, "dark")
        assert seen.faults + seen.page.evaluate(LOOK) == []
    finally:
        seen.page.context.close()


def wait_for_theme(page: Page, name: str) -> None:
    page.wait_for_function(f"() => document.documentElement.dataset.theme === '{name}'")


def dead_links(page: Page, root: Path, site: str) -> list[str]:
    """Links within the site whose file or anchor does not exist."""
    dead = []
    for link in page.evaluate("() => [...document.querySelectorAll('a[href]')].map(a => a.href)"):
        target, anchor = urldefrag(link)
        if not target.startswith(site):
            continue
        file = root / unquote(urlparse(target).path).lstrip("/")
        file = file / "index.html" if file.is_dir() else file
        if not file.is_file():
            dead.append(link)
        elif anchor and file.suffix == ".html":
            html = file.read_text(encoding="utf-8")
            if f'id="{unquote(anchor)}"' not in html and f'name="{unquote(anchor)}"' not in html:
                dead.append(link)
    return dead


@pytest.mark.parametrize("path", CHAPTERS)
def test_chapter_offers_its_notebook_and_copy_buttons(
    browser: Browser, site: str, path: str
) -> None:
    seen = visit(browser, site, path, WIDE, "light")
    try:
        links = seen.page.evaluate(
            "() => [...document.querySelectorAll('a[href]')].map(a => a.href)"
        )
        name = Path(path).stem
        notebooks = [link for link in links if link.endswith(f"{name}.ipynb")]
        assert notebooks, "no download of the notebook"
        assert seen.page.request.get(notebooks[0]).ok
        assert seen.page.locator("button.copybtn").count() > 0
        assert seen.page.locator(".prev-next-area a").count() >= 1
    finally:
        seen.page.context.close()


def test_equations_are_numbered_and_linked(browser: Browser, site: str) -> None:
    seen = visit(browser, site, "book/ttft.html", WIDE, "light")
    try:
        assert seen.page.locator("span.eqno").count() >= 3
        assert seen.page.locator("a.reference.internal[href='#equation-eq-ttft']").count() >= 1
    finally:
        seen.page.context.close()


def test_search_finds_a_word(browser: Browser, site: str) -> None:
    seen = visit(browser, site, "search.html?q=goodput", WIDE, "light")
    try:
        seen.page.wait_for_selector("#search-results li a", timeout=10_000)
        hrefs = seen.page.locator("#search-results li a").evaluate_all("a => a.map(x => x.href)")
        assert any("goodput" in href for href in hrefs)
    finally:
        seen.page.context.close()


def test_figures_stay_legible_in_the_dark(browser: Browser, site: str) -> None:
    """Figures are drawn in dark ink on nothing; the dark theme must turn them over."""
    seen = visit(browser, site, "book/ttft.html", WIDE, "dark")
    try:
        shades = seen.page.evaluate(
            "() => [...document.querySelectorAll('.cell_output img')].map("
            "i => getComputedStyle(i).filter + '|' + getComputedStyle(i).backgroundColor)"
        )
        assert shades
        assert all("invert" in s and s.endswith("rgba(0, 0, 0, 0)") for s in shades)
    finally:
        seen.page.context.close()


# The checks can fail ------------------------------------------------------------------------------

FAULTY = {
    "no alt text": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt="">',
    "broken image": '<img src="broken.svg" alt="a figure">',
    "math not typeset": '<div class="math">x^2</div>',
    "math error": '<span data-mjx-error="x">x</span>',
    "scrolls sideways": '<div style="width: 3000px">wide</div>',
    "markup left raw": "<p>see {eq}`eq-ttft`</p>",
    "404": '<script src="missing.js"></script>',
    "external": '<script src="http://127.0.0.1:9/x.js"></script>',
    "script": "<script>throw new Error('oh')</script>",
    "console": "<script>console.error('oh')</script>",
}


@pytest.mark.parametrize("fault", FAULTY)
def test_check_can_fail(browser: Browser, tmp_path: Path, fault: str) -> None:
    (tmp_path / "broken.svg").write_text("not an image", encoding="utf-8")
    for name, body in (("sound", "<p>fine</p>"), ("faulty", FAULTY[fault])):
        (tmp_path / f"{name}.html").write_text(
            f"<!doctype html><html lang=en><link rel=icon href='data:,'><main>{body}</main></html>",
            encoding="utf-8",
        )
    for folder in serve(tmp_path):
        sound = visit(browser, folder, "sound.html", PHONE, "light")
        faulty = visit(browser, folder, "faulty.html", PHONE, "light")
        assert sound.faults == []
        assert any(found.startswith(fault) for found in faulty.faults), faulty.faults
        sound.page.context.close()
        faulty.page.context.close()


def test_dead_link_is_found(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<!doctype html><link rel=icon href='data:,'><h1 id=\"top\">x</h1>"
        "<a href='#top'>a</a><a href='#nowhere'>b</a><a href='gone.html'>c</a>",
        encoding="utf-8",
    )
    for folder in serve(tmp_path):
        seen = visit(browser, folder, "page.html", WIDE, "light")
        dead = dead_links(seen.page, tmp_path, folder)
        assert [link.rsplit("/", 1)[1] for link in dead] == [
            "page.html#top",
            "page.html#nowhere",
            "gone.html",
        ][1:]
        seen.page.context.close()
