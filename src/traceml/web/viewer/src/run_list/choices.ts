/** What the reader made of the list of runs; it is in the address, so that Back finds it again. */

import { useCallback, useEffect, useState } from "preact/hooks";
import { readChoice, readChoicesOf, rememberList, writeChoices } from "../address";

export interface ListChoices {
  /** A filter of the query language, or plain words. */
  filter: string;
  /** "steps" is upwards, "-steps" downwards; empty: the newest first. */
  sort: string;
  /** The columns with commas, as the server takes them; empty: the usual ones. */
  columns: string;
  group: string;
  /** The run that stays on top. */
  baseline: string;
  /** The runs that are selected, in the order of choosing. */
  selected: readonly string[];
  /** Those of them on side A of a comparison, where the reader said so. */
  sideA: readonly string[];
  /** Whether all runs that match are selected. */
  isAll: boolean;
}

const MAX_ADDRESS_CHARS = 4000; // a longer selection lasts as long as the page

export type Choose = (news: Partial<ListChoices>) => void;

function readChoices(): ListChoices {
  return {
    filter: readChoice("q") ?? "",
    sort: readChoice("sort") ?? "",
    columns: readChoice("columns") ?? "",
    group: readChoice("group") ?? "",
    baseline: readChoice("base") ?? "",
    selected: readChoicesOf("run"),
    sideA: readChoicesOf("a"),
    isAll: readChoice("select") === "all",
  };
}

function write(choices: ListChoices): void {
  const isLong = choices.selected.join("").length > MAX_ADDRESS_CHARS;
  const isNamed = !choices.isAll && !isLong;
  writeChoices({
    q: choices.filter,
    sort: choices.sort,
    columns: choices.columns,
    group: choices.group,
    base: choices.baseline,
    run: isNamed ? choices.selected : [],
    a: isNamed ? choices.sideA : [],
    select: choices.isAll ? "all" : null,
  });
  rememberList();
}

export function useListChoices(): [ListChoices, Choose] {
  const [choices, setChoices] = useState(readChoices);
  useEffect(rememberList, []);
  const choose = useCallback((news: Partial<ListChoices>) => {
    setChoices((before) => {
      const next = { ...before, ...news };
      write(next);
      return next;
    });
  }, []);
  return [choices, choose];
}

/** What the server is asked with, but for the place in the list. */
export function queryOf(choices: ListChoices): URLSearchParams {
  const { filter, sort, columns, group, baseline } = choices;
  const query = new URLSearchParams();
  const given = { q: filter.trim(), sort, columns, group, base: baseline };
  for (const [name, value] of Object.entries(given)) if (value !== "") query.set(name, value);
  return query;
}

/** The names of columns as one text; those with a comma are in quotes already. */
export function joined(keys: readonly string[]): string {
  return keys.join(",");
}
