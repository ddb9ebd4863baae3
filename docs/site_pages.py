"""Makes the pages of the site from files that are also read on GitHub; mkdocs calls `on_…`.

    make docs

README, CONTRIBUTING and CHANGELOG become pages, and each folder or file of `examples/` one page
with its sources. Links between files are written as GitHub has them and become links between pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
AT_THE_TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the repository's top folder, and the pages they become."""
LANGUAGES = {
    ".py": "python",
    ".sbatch": "bash",
    ".sh": "bash",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    "Dockerfile": "docker",
}
"""What a source is written in, by how its name ends, or by the whole name; others are not shown."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"`[^`\n]+`")


def anchor(title: str, _separator: str = "-") -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def on_config(config: MkDocsConfig) -> None:
    """Gives headings the anchors that they have on GitHub, so that links work in both places."""
    config.mdx_configs["toc"]["slugify"] = anchor


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages whose sources are outside `docs/`."""
    for name, page in AT_THE_TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for path in sorted((ROOT / "examples").iterdir()):
        sources = [each for each in (path, *sorted(path.rglob("*"))) if _language(each)]
        if sources:
            content = "\n".join(
                [f"# examples/{path.name}\n", *(_listing(each, path) for each in sources)]
            )
            files.append(File.generated(config, f"examples/{path.name}.md", content=content))
    return files


def _language(path: Path) -> str | None:
    return LANGUAGES.get(path.suffix or path.name)


def _listing(path: Path, example: Path) -> str:
    """A source below its name, which in a folder says where it is."""
    name = path.name if path == example else path.relative_to(example).as_posix()
    return f"## {name}\n\n```{_language(path)}\n{path.read_text().rstrip()}\n```\n"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links between files of the repository into links between pages."""
    if page.parent is None:  # a tab of its own: the list beside it would hold this page alone
        page.meta["hide"] = ["navigation"]
    uri = page.file.src_uri
    folder = "" if uri in AT_THE_TOP.values() else posixpath.dirname(f"docs/{uri}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        to = page_of(target) + (link[2] or "")
        return posixpath.relpath(to, posixpath.dirname(uri) or ".")

    # GitHub wants a bar in a table's cell escaped, also inside code, where mkdocs shows the escape.
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), LINK.sub(moved, markdown))


def page_of(target: str) -> str:
    """Where the site has a file or folder of the repository; a source has an anchor in its page."""
    if target in AT_THE_TOP:
        return AT_THE_TOP[target]
    top, _, rest = target.partition("/")
    if top == "docs":
        return rest
    if top == "examples":
        page, _, file = rest.partition("/")
        return f"examples/{page}.md" + (f"#{anchor(file)}" if file else "")
    return target  # mkdocs says that there is no such page
