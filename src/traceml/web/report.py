"""The one-file report: the viewer with its pages inside, opened from disk without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from traceml.figures.page import ComparisonPage, ManyRunsPage, Page, RunPage
from traceml.model.errors import UsageError
from traceml.store.folder import write_atomically
from traceml.web import assets

FILE_NAME = "report.html"
"""In the run folder."""

_MARKUP = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
"""Characters that could end a script element; in JSON they occur only in strings."""

_CHOOSE = """\
(function () {
  var pages = document.querySelectorAll("script[data-page]");
  var links = document.querySelectorAll("#comparisons a");
  var isFramed = location.protocol === "about:"; // a link would lead to the notebook's own page
  function chosen() {
    var found = /^#comparison-(\\d+)$/.exec(isFramed ? window.name : location.hash);
    return found ? Math.min(Math.max(Number(found[1]), 1), pages.length) : 1;
  }
  var shown = chosen();
  pages[shown - 1].id = "page";
  links[shown - 1].setAttribute("aria-current", "page");
  addEventListener("hashchange", function () { if (chosen() !== shown) location.reload(); });
  if (isFramed) links.forEach(function (link) {
    link.addEventListener("click", function (event) {
      event.preventDefault();
      window.name = link.getAttribute("href");
      location.reload();
    });
  });
})();
"""
"""The script that gives the viewer the chosen page."""
_CHOICES = """\
#comparisons { font: 14px/1.4 system-ui, sans-serif; padding: .5rem 1rem; display: flex;
  flex-wrap: wrap; gap: .25rem 1rem; }
#comparisons a[aria-current] { font-weight: 600; color: inherit; text-decoration: none; }
@media print { #comparisons { display: none; } }
"""


def write_report(pages: Sequence[Page], path: Path) -> None:
    """Writes one page, or several to choose from, as one HTML file; raises UsageError."""
    content = report(pages).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        found = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the report cannot be written to {path}: {found}; choose another place with -o"
        ) from None


def report(pages: Sequence[Page]) -> str:
    """Returns the same as text; raises ViewerMissing where the viewer was not built."""
    title = f"{_title(pages[0])} · TraceML" if len(pages) == 1 else "Comparisons · TraceML"
    files = assets.load()
    if len(pages) == 1:
        return assets.document(title, _enclosed(pages[0], 'id="page"'), files)
    links = "\n".join(
        f'<a href="#comparison-{place}">{escape(_title(page))}</a>'
        for place, page in enumerate(pages, start=1)
    )
    navigation = f'<nav id="comparisons" aria-label="Comparisons">\n{links}\n</nav>'
    data = "\n".join(_enclosed(page, "data-page") for page in pages)
    return assets.document(title, data, files, navigation, _CHOOSE, _CHOICES)


def _title(page: Page) -> str:
    if isinstance(page, RunPage):
        return page.head.name
    if isinstance(page, ComparisonPage):
        return f"{page.a} vs {page.b}"
    if isinstance(page, ManyRunsPage):
        return page.title
    return page.folder


def _enclosed(page: Page, attribute: str) -> str:
    data = msgspec.json.encode({"page": page, "live": False, "base": ""}).decode()
    return f'<script type="application/json" {attribute}>{data.translate(_MARKUP)}</script>'
