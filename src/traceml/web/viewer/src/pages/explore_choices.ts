/** What the reader chose on the page of charts; it is in the address, and Back undoes a choice. */

import { useCallback, useEffect, useState } from "preact/hooks";
import { type Brushes, readBrush, writtenBrush } from "../pieces/brushes";

/** Names of columns as filters have them; `null`: whatever the server thinks best. */
export interface ExploreChoices {
  q: string;
  metric: string | null;
  group: string | null;
  axes: string | null;
  x: string | null;
  y: string | null;
  color: string | null;
  size: string | null;
  down: string | null;
  across: string | null;
  /** Of curves over runs: "range" or "interval". */
  band: string | null;
  /** Columns on a logarithmic axis, and on a linear one, against what the server suggests. */
  log: readonly string[];
  linear: readonly string[];
  brushes: Brushes;
}

const ONES = [
  ...(["metric", "group", "axes", "x", "y", "color", "size"] as const),
  ...(["down", "across", "band"] as const),
];

function read(): ExploreChoices {
  const search = new URLSearchParams(window.location.search);
  const ones = Object.fromEntries(ONES.map((name) => [name, search.get(name)]));
  return {
    ...(ones as Record<(typeof ONES)[number], string | null>),
    q: search.get("q") ?? "",
    log: search.getAll("log"),
    linear: search.getAll("linear"),
    brushes: search.getAll("brush").flatMap((text) => readBrush(text) ?? []),
  };
}

function writtenSearch(choices: ExploreChoices): string {
  const search = new URLSearchParams();
  if (choices.q !== "") search.set("q", choices.q);
  for (const name of ONES) if (choices[name] !== null) search.set(name, choices[name]);
  for (const name of choices.log) search.append("log", name);
  for (const name of choices.linear) search.append("linear", name);
  for (const brush of choices.brushes) search.append("brush", writtenBrush(brush));
  const query = search.toString();
  return query && `?${query}`;
}

export type Choose = (news: Partial<ExploreChoices>) => void;

/** A brush is dragged through many states: it replaces the address instead of adding to it. */
export function useExploreChoices(): [ExploreChoices, Choose] {
  const [choices, setChoices] = useState(read);
  useEffect(() => {
    const back = (): void => setChoices(read());
    window.addEventListener("popstate", back);
    return () => window.removeEventListener("popstate", back);
  }, []);
  const choose = useCallback<Choose>((news) => {
    const next = { ...read(), ...news };
    const address = window.location.pathname + writtenSearch(next) + window.location.hash;
    const isBrush = Object.keys(news).every((name) => name === "brushes");
    if (isBrush) window.history.replaceState(window.history.state, "", address);
    else window.history.pushState(null, "", address);
    setChoices(next);
  }, []);
  return [choices, choose];
}

/** The same choices for the server, of those that it needs. */
export function questionOf(
  choices: ExploreChoices,
  names: readonly Exclude<keyof ExploreChoices, "log" | "linear" | "brushes">[],
): string {
  const search = new URLSearchParams();
  for (const name of names) {
    const value = choices[name];
    if (value !== null && !(name === "q" && value === "")) search.set(name, value);
  }
  return search.toString();
}
