/** All runs under a folder: filter them, sort them, open one, or compare two. */

import { useState } from "preact/hooks";
import { comparisonAddress, runAddress } from "../place";
import { Notes } from "../pieces/notes";
import { Badge, StatePill } from "../pieces/tone";
import type { RunRow, RunsPage } from "../schema";

type Column = "name" | "status" | "step_time" | "steps" | "duration" | "ranks" | "started";

interface Order {
  column: Column;
  isDown: boolean;
}

const TITLES: Record<Column, string> = {
  name: "Run",
  status: "Diagnosis",
  step_time: "Step time",
  steps: "Steps",
  duration: "Duration",
  ranks: "Ranks",
  started: "Started",
};
const COLUMNS = Object.keys(TITLES) as Column[];
const SEVERITY = ["crit", "warn", "info", "good", "muted"];

interface Properties {
  page: RunsPage;
  base: string;
  canCompare: boolean;
}

export function RunsView({ page, base, canCompare }: Properties) {
  const [filter, setFilter] = useState("");
  const [picked, setPicked] = useState<readonly string[]>([]);
  const names = new Set(page.runs.map((run) => run.name));
  const chosen = picked.filter((name) => names.has(name));
  const shown = page.runs.filter((run) => matches(run, filter));
  const pick = (name: string): void => {
    const others = chosen.filter((one) => one !== name);
    setPicked(others.length < chosen.length ? others : [...chosen, name].slice(-2));
  };
  return (
    <>
      <section class="head" aria-label="The list">
        <p class="command">{page.folder}</p>
      </section>
      {page.runs.length === 0 ? (
        <Nothing />
      ) : (
        <section class="card part" aria-label="Runs">
          <Filter filter={filter} onFilter={setFilter} count={shown.length} of={page.runs.length} />
          <List runs={shown} base={base} chosen={canCompare ? chosen : null} onPick={pick} />
          {shown.length === 0 && <p class="note">No run matches “{filter}”.</p>}
        </section>
      )}
      <Notes title="Notes" lines={page.notes} />
      {chosen.length > 0 && <Compare chosen={chosen} base={base} onClear={() => setPicked([])} />}
    </>
  );
}

function Nothing() {
  return (
    <p class="card empty">
      <span>
        There are no runs here yet. Start one with <code>traceml run train.py</code>: it appears by
        itself.
      </span>
    </p>
  );
}

interface FilterProperties {
  filter: string;
  onFilter: (filter: string) => void;
  count: number;
  of: number;
}

function Filter({ filter, onFilter, count, of }: FilterProperties) {
  const all = `${of} ${of === 1 ? "run" : "runs"}`;
  return (
    <div class="filter">
      <input
        type="search"
        data-filter
        value={filter}
        placeholder="Filter by name, state or diagnosis"
        aria-label="Filter the runs"
        onInput={(event) => onFilter(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      <span class="note" role="status">
        {count === of ? all : `${count} of ${all}`}
      </span>
    </div>
  );
}

interface ListProperties {
  runs: readonly RunRow[];
  base: string;
  /** Those to compare, at most two; `null` where nothing can be compared. */
  chosen: readonly string[] | null;
  onPick: (name: string) => void;
}

function List({ runs, base, chosen, onPick }: ListProperties) {
  const [order, setOrder] = useState<Order>({ column: "started", isDown: true });
  return (
    <table class="runs">
      <thead>
        <tr>
          {chosen && <th class="pick" aria-label="Compare" />}
          {COLUMNS.map((column) => (
            <Title key={column} column={column} order={order} onOrder={setOrder} />
          ))}
        </tr>
      </thead>
      <tbody>
        {sorted(runs, order).map((run) => (
          <Line
            key={run.name}
            run={run}
            base={base}
            place={chosen && chosen.indexOf(run.name)}
            onPick={onPick}
          />
        ))}
      </tbody>
    </table>
  );
}

interface TitleProperties {
  column: Column;
  order: Order;
  onOrder: (order: Order) => void;
}

function Title({ column, order, onOrder }: TitleProperties) {
  const isSorted = order.column === column;
  const isDown = isSorted ? !order.isDown : column === "started";
  const sort = isSorted ? (order.isDown ? "descending" : "ascending") : "none";
  return (
    <th scope="col" class={`runs-${column}`} aria-sort={sort}>
      <button type="button" class="quiet" onClick={() => onOrder({ column, isDown })}>
        {TITLES[column]}
        <span aria-hidden="true">{isSorted ? (order.isDown ? " ↓" : " ↑") : ""}</span>
      </button>
    </th>
  );
}

interface LineProperties {
  run: RunRow;
  base: string;
  /** 0: it is A, 1: it is B, -1: not chosen; `null`: nothing can be chosen. */
  place: number | null;
  onPick: (name: string) => void;
}

function Line({ run, base, place, onPick }: LineProperties) {
  return (
    <tr>
      {place !== null && (
        <td class="pick">
          <label>
            <input
              type="checkbox"
              checked={place >= 0}
              aria-label={`Compare ${run.name}`}
              onChange={() => onPick(run.name)}
            />
            {place >= 0 && <span class={`side side-${"ab"[place]}`}>{"AB"[place]}</span>}
          </label>
        </td>
      )}
      <th scope="row" class="runs-name">
        <a href={runAddress(base, run.name)}>{run.name}</a>
        <StatePill state={run.state}>{run.state_words}</StatePill>
      </th>
      <td class="runs-status">
        <Badge tone={run.severity}>{run.status}</Badge>
        <span class="runs-why" title={run.why}>
          {run.why}
        </span>
      </td>
      {(["step_time", "steps", "duration", "ranks", "started"] as const).map((column) => (
        <td key={column} class={`runs-${column}`} data-title={TITLES[column]}>
          {run[column]}
        </td>
      ))}
    </tr>
  );
}

interface CompareProperties {
  chosen: readonly string[];
  base: string;
  onClear: () => void;
}

function Compare({ chosen: [a, b], base, onClear }: CompareProperties) {
  return (
    <div class="compare" role="region" aria-label="Compare">
      <p>
        <span class="side side-a">A</span> <b>{a}</b>
        {b === undefined ? (
          <span class="note"> Choose a second run to compare it with.</span>
        ) : (
          <>
            {" "}
            against <span class="side side-b">B</span> <b>{b}</b>
          </>
        )}
      </p>
      <button type="button" class="quiet" onClick={onClear}>
        Clear
      </button>
      {a !== undefined && b !== undefined && (
        <a class="main-button" href={comparisonAddress(base, a, b)}>
          Compare
        </a>
      )}
    </div>
  );
}

function matches(run: RunRow, filter: string): boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [run.name, run.state_words, run.status, run.why, run.ranks].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Those without a value come last, whichever way it goes. */
function sorted(runs: readonly RunRow[], { column, isDown }: Order): RunRow[] {
  return [...runs].sort((one, other) => {
    const [a, b] = [keyOf(one, column), keyOf(other, column)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return compared(a, b) * (isDown ? -1 : 1);
  });
}

/** What a column is sorted by: numbers behind the words, where there are some. */
function keyOf(run: RunRow, column: Column): number | string | null {
  switch (column) {
    case "status":
      return `${SEVERITY.indexOf(run.severity)} ${run.status}`;
    case "step_time":
      return run.step_time_s;
    case "steps":
      return run.step_count;
    case "duration":
      return run.duration_s;
    case "started":
      return run.started_unix_s;
    default:
      return run[column];
  }
}

const words = new Intl.Collator("en", { numeric: true });

function compared(one: number | string, other: number | string): number {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return words.compare(String(one), String(other));
}
