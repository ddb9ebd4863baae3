/** What can be done with the runs that are selected. */

import { comparisonAddress } from "../place";

export const MAX_COMPARED = 20; // runs that the compare page takes, each against the baseline
const MAX_CHIPS = 12;
const MAX_NAMED = 10_000; // characters of names that an address may have

interface Properties {
  base: string;
  names: readonly string[];
  /** Those on side A; the others are on side B. */
  sideA: readonly string[];
  baseline: string;
  isAll: boolean;
  /** The filter and the shown columns: exports follow them. */
  filter: string;
  sort: string;
  columns: string;
  onSide: (name: string) => void;
  onDrop: (name: string) => void;
  onClear: () => void;
  onBaseline: (name: string) => void;
  onTags: () => void;
}

export function SelectionBar(properties: Properties) {
  const { base, names, sideA, baseline, onClear } = properties;
  const others = names.filter((name) => !sideA.includes(name));
  const isShort = lengthOf(names) <= MAX_NAMED;
  const isReady = isShort && sideA.length > 0 && others.length > 0;
  const first = baseline || (sideA[0] ?? names[0] ?? "");
  const each = [first, ...names.filter((name) => name !== first)];
  const canEach = each.length >= 3 && each.length <= MAX_COMPARED;
  const only = names.length === 1 ? names[0]! : null;
  return (
    <div class="compare" role="region" aria-label="Selected runs">
      <b class="selected-count" role="status">
        {names.length.toLocaleString("en-US")} selected
      </b>
      {names.length <= MAX_CHIPS && <Chips {...properties} />}
      {names.length === 1 && baseline === "" && (
        <span class="note">Choose a second run to compare it with.</span>
      )}
      <div class="selection-actions">
        {only !== null && only !== baseline && (
          <button type="button" class="plain" onClick={() => properties.onBaseline(only)}>
            Pin as baseline
          </button>
        )}
        <button type="button" class="plain" onClick={properties.onTags}>
          Tags…
        </button>
        <a class="plain" href={exploreAddress(properties)}>
          Explore
        </a>
        <a class="plain" href={exportAddress(properties)} download="runs.csv">
          Export CSV
        </a>
        {names.length <= MAX_COMPARED && (
          <a class="plain" href={reportAddress(base, canEach ? each : names, sideA, others)}>
            Report
          </a>
        )}
        <button type="button" class="plain" onClick={onClear}>
          Clear
        </button>
        {canEach && (
          <a
            class={isReady && others.length + sideA.length === 2 ? "plain" : "main-button"}
            href={`${base}/compare?${runsQuery(each)}`}
            title={`Each of ${each.length - 1} runs against ${first}`}
          >
            Compare each
          </a>
        )}
        {isReady && (
          <a
            class={canEach ? "plain" : "main-button"}
            href={comparisonAddress(base, sideA, others)}
            title="Side A against side B, the run being the unit"
          >
            {canEach ? "Compare A with B" : "Compare"}
          </a>
        )}
      </div>
    </div>
  );
}

function Chips({ names, sideA, onSide, onDrop }: Properties) {
  return (
    <ul class="chips">
      {names.map((name) => {
        const side = sideA.includes(name) ? "a" : "b";
        return (
          <li key={name}>
            <button
              type="button"
              class={`side side-${side}`}
              title={`Move to side ${side === "a" ? "B" : "A"}`}
              aria-label={`${name} is on side ${side.toUpperCase()}; move it to the other`}
              onClick={() => onSide(name)}
            >
              {side.toUpperCase()}
            </button>
            <b title={name}>{name}</b>
            <button
              type="button"
              class="quiet"
              aria-label={`Leave ${name} out`}
              title="Leave it out"
              onClick={() => onDrop(name)}
            >
              ×
            </button>
          </li>
        );
      })}
    </ul>
  );
}

function runsQuery(names: readonly string[]): string {
  return names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
}

/** All that match have a filter; others are named, as far as an address holds them. */
function isNamed({ names, isAll }: Properties): boolean {
  return !isAll && lengthOf(names) <= MAX_NAMED;
}

/** How many characters of an address names take, about. */
function lengthOf(names: readonly string[]): number {
  return names.join("").length + 8 * names.length;
}

function exploreAddress(properties: Properties): string {
  const { base, names, filter } = properties;
  const words = names.map((name) => JSON.stringify(name)).join(", ");
  const q = isNamed(properties) ? `name in (${words})` : filter;
  return `${base}/explore?${new URLSearchParams({ q })}`;
}

function exportAddress(properties: Properties): string {
  const { base, names, filter, sort, columns } = properties;
  const query = new URLSearchParams({ columns });
  if (isNamed(properties)) for (const name of names) query.append("run", name);
  else if (filter !== "") query.set("q", filter);
  if (sort !== "") query.set("sort", sort);
  return `${base}/export.csv?${query}`;
}

function reportAddress(
  base: string,
  each: readonly string[],
  a: readonly string[],
  b: readonly string[],
): string {
  if (each.length === 2 && a.length === 1) {
    return `${base}/report?a=${encodeURIComponent(a[0]!)}&b=${encodeURIComponent(b[0]!)}`;
  }
  return `${base}/report?${runsQuery(each)}`;
}
