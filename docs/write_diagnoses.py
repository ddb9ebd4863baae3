"""Writes the table and the sections of `docs/diagnoses.md` from what the rules declare.

    make docs

The text around them is written by hand in the page itself; what stands between the marks is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom
from traceml.model.finding import Kind, Section

PAGE = Path(__file__).with_name("diagnoses.md")


def page(text: str, rules: Iterable[Rule]) -> str:
    """The page with the parts between its marks written anew."""
    rules = list(rules)
    docs = documented(rules)
    text = between_marks(text, "table of symptoms", symptoms(docs))
    return between_marks(
        between_marks(text, "table of rules", table(docs, rules)),
        "sections of rules",
        "\n\n".join(f"## {kind.value}\n\n{section(doc)}" for kind, doc in docs.items()),
    )


def documented(rules: Iterable[Rule]) -> dict[Kind, Doc]:
    """What is said of each kind: the listed ones in their order, then the others by name."""
    docs = {kind: doc for rule in rules for kind, doc in _docs_of(rule).items()}
    order = list(Kind)
    return {
        kind: docs[kind]
        for kind in sorted(
            docs, key=lambda kind: (order.index(kind) if kind in order else len(order), kind.value)
        )
    }


def section(doc: Doc) -> str:
    """What the page says of a kind: the paragraphs below the first line of a rule's docstring."""
    text = doc.text or ""
    return text[text.index("*Meaning.*") :].strip()


def _docs_of(rule: Rule) -> dict[Kind, Doc]:
    own = {} if rule.doc is None else {rule.kind: rule.doc}
    return {**own, **rule.also}


def table(docs: dict[Kind, Doc], rules: Iterable[Rule]) -> str:
    """One row for each kind."""
    rules = list(rules)
    rows = ["| kind | status | section | severity | says |", "| --- | --- | --- | --- | --- |"]
    for kind, doc in docs.items():
        where = _sections([rule for rule in rules if kind in rule.kinds])
        rows.append(f"| `{kind.value}` | {kind.status} | {where} | {doc.severities} | {doc.says} |")
    return "\n".join(rows)


def symptoms(docs: dict[Kind, Doc]) -> str:
    """One row for each symptom, with the kinds that can be its cause."""
    rows = ["| what you see | what it may be |", "| --- | --- |"]
    for symptom in Symptom:
        causes = [
            f"[{kind.status}](#{kind.value.lower()}): {doc.says}"
            for kind, doc in docs.items()
            if symptom in doc.symptoms
        ]
        rows.append(f"| {symptom.value} | {'<br>'.join(causes)} |")
    return "\n".join(rows)


def _sections(rules: list[Rule]) -> str:
    sections = {rule.section for rule in rules}
    if sections == set(Section):
        return "every section"
    words = [each.value.replace("_", " ") for each in Section if each in sections]
    return ", ".join([*words, *(["cause"] if rules[0].role is RuleRole.CAUSE else [])])


def between_marks(text: str, name: str, new: str) -> str:
    """The text with what stands between the two marks of this name replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    written, found = re.subn(
        f"({re.escape(begin)}\n).*?({re.escape(end)})",
        lambda match: f"{match[1]}{new}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    if found != 1:
        raise SystemExit(f"the page has to hold {begin} and {end} once each; it has {found}")
    return written


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), all_rules().rules))
