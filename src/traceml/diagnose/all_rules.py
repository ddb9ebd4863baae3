"""All rules: every file in `rules/`, found by walking the folder."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType

from traceml.diagnose import rules as rules_folder
from traceml.diagnose.rule import Rule, RuleRole
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section


class RuleSet:
    """All rules, and what follows from their declarations together."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.checks = tuple(rule for rule in self.rules if rule.role is not RuleRole.FALLBACK)
        """The rules to ask; the others speak where these have no verdict."""
        by_section = sorted(self.rules, key=lambda rule: list(Section).index(rule.section))
        # Reversed, so that of several rules of one kind the one of the first section stays.
        self._by_kind = MappingProxyType(
            {kind: rule for rule in reversed(by_section) for kind in rule.kinds}
        )
        self._fallbacks = MappingProxyType(
            {rule.section: rule for rule in self.rules if rule.role is RuleRole.FALLBACK}
        )
        self._explained_by = MappingProxyType(
            {
                kind: frozenset(
                    each for rule in self.rules if kind in rule.explains for each in rule.kinds
                )
                for kind in self._by_kind
            }
        )

    def of(self, kind: Kind) -> Rule:
        """Returns the rule that finds this kind; if several do, the one for the earliest
        section."""
        return self._by_kind[kind]

    def explained_by(self, kind: Kind) -> frozenset[Kind]:
        """Returns the kinds that may explain this one."""
        return self._explained_by[kind]

    def fallback(self, section: Section, facts: Facts) -> Finding:
        """Returns what to say about a section without a verdict."""
        found = self._fallbacks[section].check(facts)
        if found is None:
            raise TypeError(f"the fallback of {section.value} found nothing: it always has to")
        return found


@cache
def all_rules() -> RuleSet:
    """Returns the rules of this package; they are loaded when a run is first diagnosed."""
    return RuleSet(find_rules(rules_folder))


def find_rules(package: ModuleType) -> list[Rule]:
    """Returns the rules that the files of a package declare, by file name."""
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    return [_declared(import_module(f"{package.__name__}.{name}")) for name in names]


def _declared(module: ModuleType) -> Rule:
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        raise TypeError(
            f"{module.__name__} declares no rule: each file in rules/ ends with "
            "RULE = Rule(kind=…, section=…, check=…, doc=…); what rules share belongs beside "
            "the folder, in diagnose/"
        )
    return rule
