/** On top of pages about many runs: the other views of the same runs, and the filter. */

import { useEffect, useState } from "preact/hooks";
import type { Place } from "../place";

const VIEWS = [
  ["List", "/"],
  ["Explore", "/explore"],
  ["History", "/history"],
] as const;

interface Properties {
  place: Place;
  /** The view that is shown. */
  current: (typeof VIEWS)[number][0];
  filter: string;
  /** How many runs match, in words. */
  found: string;
  onFilter: (filter: string) => void;
}

export function RunsHead({ place, current, filter, found, onFilter }: Properties) {
  const [typed, setTyped] = useState(filter);
  useEffect(() => setTyped(filter), [filter]);
  const apply = (): void => {
    if (typed.trim() !== filter) onFilter(typed.trim());
  };
  return (
    <section class="head runs-head" aria-label="Which runs">
      <nav aria-label="Views of these runs">
        {VIEWS.map(([name, path]) =>
          name === current ? (
            <span key={name} aria-current="page">
              {name}
            </span>
          ) : (
            <a key={name} href={viewAddress(place, path, filter)}>
              {name}
            </a>
          ),
        )}
      </nav>
      <form
        class="filter-line"
        onSubmit={(event) => {
          event.preventDefault();
          apply();
        }}
      >
        <input
          type="search"
          data-filter
          value={typed}
          placeholder='Filter: words, or params.lr > 0.001 and status = "finished"'
          aria-label="Filter the runs"
          onInput={(event) => setTyped(event.currentTarget.value)}
          onBlur={apply}
        />
        <span class="note" role="status">
          {found}
        </span>
      </form>
    </section>
  );
}

/** A view of the runs that a filter lets through. */
export function viewAddress(place: Place, path: string, filter: string): string {
  return `${place.base}${path}${filter && `?q=${encodeURIComponent(filter)}`}`;
}
