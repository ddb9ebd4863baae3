/** What the reader chose on the page of a history; it is in the address, and Back undoes it. */

import { useCallback, useEffect, useState } from "preact/hooks";

/** As the server takes them; `null`: the usual. */
const KEYS = ["q", "metric", "command", "run", "order", "any_host", "ignore"] as const;

export type HistoryChoices = Record<(typeof KEYS)[number], string | null>;
export type Choose = (news: Partial<HistoryChoices>) => void;

function read(): HistoryChoices {
  const search = new URLSearchParams(window.location.search);
  return Object.fromEntries(KEYS.map((key) => [key, search.get(key)])) as HistoryChoices;
}

export function questionOf(choices: HistoryChoices): string {
  const search = new URLSearchParams();
  for (const key of KEYS) if (choices[key]) search.set(key, choices[key]);
  return search.toString();
}

export function useHistoryChoices(): [HistoryChoices, Choose] {
  const [choices, setChoices] = useState(read);
  useEffect(() => {
    const back = (): void => setChoices(read());
    window.addEventListener("popstate", back);
    return () => window.removeEventListener("popstate", back);
  }, []);
  const choose = useCallback<Choose>((news) => {
    const next = { ...read(), ...news };
    const query = questionOf(next);
    window.history.pushState(null, "", window.location.pathname + (query && `?${query}`));
    setChoices(next);
  }, []);
  return [choices, choose];
}
